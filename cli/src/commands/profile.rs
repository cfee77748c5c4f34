//! stub
pub fn run(_: &crate::args::ProfileArgs) -> anyhow::Result<()> { Ok(()) }
