//! Logging settings of the protocol, answered and held to what this server can do.
//!
//! Log lines go to standard error through `tracing`; switching kinds of them on and off works, a log
//! file does not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde_json::{Value as Json, json};

use crate::error::{Error, Result};

/// Settings that clients may ask for and change.
#[derive(Debug)]
pub struct Switches {
    info: AtomicBool,
    warning: AtomicBool,
    error: AtomicBool,
    verbose: AtomicU32,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            info: AtomicBool::new(true),
            warning: AtomicBool::new(true),
            error: AtomicBool::new(true),
            verbose: AtomicU32::new(0),
        }
    }
}

impl Switches {
    /// Whether such lines are wanted; verbose ones are those of this project alone. What it answers
    /// may be kept until [`Switches::set_log`] changes something, which makes `tracing` ask anew.
    pub fn wants(&self, line: &tracing::Metadata<'_>) -> bool {
        match *line.level() {
            tracing::Level::ERROR => self.error.load(Ordering::Relaxed),
            tracing::Level::WARN => self.warning.load(Ordering::Relaxed),
            tracing::Level::INFO => self.info.load(Ordering::Relaxed),
            tracing::Level::DEBUG => {
                line.target().starts_with("lazybatch") && self.verbose.load(Ordering::Relaxed) > 0
            }
            tracing::Level::TRACE => false,
        }
    }

    /// Logging settings.
    pub fn log(&self) -> Json {
        json!({
            "log_file": "",
            "log_info": self.info.load(Ordering::Relaxed),
            "log_warning": self.warning.load(Ordering::Relaxed),
            "log_error": self.error.load(Ordering::Relaxed),
            "log_verbose_level": self.verbose.load(Ordering::Relaxed),
            "log_format": "default",
        })
    }

    /// Changes logging settings, all or none.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a file or another format, [`Error::Invalid`] for unknown settings and
    /// values of another kind.
    pub fn set_log(&self, settings: &BTreeMap<String, Json>) -> Result<()> {
        let mut changes = Vec::new();
        let mut verbose = None;
        let now = self.log();
        for (key, value) in settings {
            let flag = match key.as_str() {
                "log_info" => &self.info,
                "log_warning" => &self.warning,
                "log_error" => &self.error,
                "log_verbose_level" => {
                    let level = value.as_u64().and_then(|n| u32::try_from(n).ok());
                    verbose = Some(level.ok_or_else(|| {
                        let what = format!("log setting '{key}'");
                        Error::expected(what, "a whole number of 0 or more", value)
                    })?);
                    continue;
                }
                "log_file" | "log_format" => {
                    if *value == now[key] {
                        continue;
                    }
                    let message = format!("log setting '{key}' cannot be changed in this server");
                    return Err(Error::Unsupported(message));
                }
                _ => return Err(Error::Invalid(format!("Unknown log setting '{key}'"))),
            };
            let on = value.as_bool().ok_or_else(|| {
                Error::expected(format!("log setting '{key}'"), "true or false", value)
            })?;
            changes.push((flag, on));
        }
        for (flag, on) in changes {
            flag.store(on, Ordering::Relaxed);
        }
        if let Some(level) = verbose {
            self.verbose.store(level, Ordering::Relaxed);
        }
        if !settings.is_empty() {
            tracing::callsite::rebuild_interest_cache();
        }
        Ok(())
    }
}
