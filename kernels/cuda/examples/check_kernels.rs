//! Compiles every kernel to machine code for the architectures on the command line (`80 90`), needs
//! no GPU, and prints what each takes. Errors, warnings, spilled registers, and kernels that are
//! missing or that nobody launches fail it.

use std::collections::BTreeMap;
use std::process::ExitCode;

use lazybatch_cuda::jit::{Form, compile, version};
use lazybatch_cuda::kernels::SOURCES;
use lazybatch_cuda::resources::{Resources, parse};

/// Resources by kernel, then architecture.
type Table = BTreeMap<String, BTreeMap<u32, Resources>>;

fn main() -> ExitCode {
    let archs: Result<Vec<u32>, _> = std::env::args().skip(1).map(|a| a.parse()).collect();
    let archs = match archs {
        Ok(archs) if !archs.is_empty() => archs,
        _ => {
            eprintln!("expected architectures like `80 90`");
            return ExitCode::from(2);
        }
    };
    match version() {
        Ok((major, minor)) => println!("NVRTC {major}.{minor}"),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    }
    let mut table = Table::new();
    let mut wrong = Vec::new();
    for arch in &archs {
        for source in SOURCES {
            check(source, *arch, &mut table, &mut wrong);
        }
    }
    print(&table, &archs);
    for what in &wrong {
        eprintln!("{what}");
    }
    println!(
        "{} kernels for {archs:?}, {} findings",
        table.len(),
        wrong.len()
    );
    ExitCode::from(u8::from(!wrong.is_empty()))
}

/// Compiles a source and notes what is wrong with it.
fn check(
    source: &lazybatch_cuda::kernels::Source,
    arch: u32,
    table: &mut Table,
    wrong: &mut Vec<String>,
) {
    let text = source.full_text();
    let compiled = compile(
        source.file,
        &text,
        arch,
        Form::Cubin,
        &["--ptxas-options=-v"],
    );
    let log = match compiled {
        Ok(compiled) => compiled.log,
        Err(error) => {
            wrong.push(error.to_string());
            return;
        }
    };
    let place = |kernel: &str| format!("{}: {kernel} for sm_{arch}", source.file);
    let warnings = log.lines().filter(|line| line.contains("warning"));
    wrong.extend(warnings.map(str::to_owned));
    let kernels = parse(&log);
    for expected in source.kernels {
        if !kernels.iter().any(|k| k.kernel == *expected) {
            wrong.push(format!("{}: expected it, got none", place(expected)));
        }
    }
    for kernel in kernels {
        let name = kernel.kernel.clone();
        if !source.kernels.contains(&name.as_str()) {
            wrong.push(format!("{}: nobody launches it", place(&name)));
        }
        if kernel.spill_bytes > 0 || kernel.registers == 0 {
            wrong.push(format!(
                "{}: expected no spills, got {kernel:?}",
                place(&name)
            ));
        }
        table.entry(name).or_default().insert(arch, kernel);
    }
}

fn print(table: &Table, archs: &[u32]) {
    print!("{:<24}", "kernel");
    for arch in archs {
        print!(" {:>30}", format!("sm_{arch} regs spill stack smem"));
    }
    println!();
    for (kernel, by_arch) in table {
        print!("{kernel:<24}");
        for r in archs.iter().filter_map(|arch| by_arch.get(arch)) {
            let numbers = [r.registers, r.spill_bytes, r.stack_bytes, r.shared_bytes];
            let [registers, spills, stack, shared] = numbers.map(|n| n.to_string());
            print!(
                " {:>30}",
                format!("{registers:>4} {spills:>5} {stack:>5} {shared:>6}")
            );
        }
        println!();
    }
}
