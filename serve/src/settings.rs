//! Logging settings of the protocol, answered and held to what this server can do.
//!
//! Log lines go to standard error through `tracing`; switching kinds of them on and off works, a log
//! file does not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value as Json, json};

use crate::error::{Error, Result};

/// Settings that clients may ask for and change.
#[derive(Debug)]
pub struct Switches {
    info: AtomicBool,
    warning: AtomicBool,
    error: AtomicBool,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            info: AtomicBool::new(true),
            warning: AtomicBool::new(true),
            error: AtomicBool::new(true),
        }
    }
}

impl Switches {
    /// Whether lines of that level are wanted.
    pub fn wants(&self, level: tracing::Level) -> bool {
        match level {
            tracing::Level::ERROR => self.error.load(Ordering::Relaxed),
            tracing::Level::WARN => self.warning.load(Ordering::Relaxed),
            tracing::Level::INFO => self.info.load(Ordering::Relaxed),
            _ => true,
        }
    }

    /// Logging settings.
    pub fn log(&self) -> Json {
        json!({
            "log_file": "",
            "log_info": self.info.load(Ordering::Relaxed),
            "log_warning": self.warning.load(Ordering::Relaxed),
            "log_error": self.error.load(Ordering::Relaxed),
            "log_verbose_level": 0,
            "log_format": "default",
        })
    }

    /// Changes logging settings, all or none.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a file, another format or verbose lines, [`Error::Invalid`] for
    /// unknown settings and values of another kind.
    pub fn set_log(&self, settings: &BTreeMap<String, Json>) -> Result<()> {
        let mut changes = Vec::new();
        let now = self.log();
        for (key, value) in settings {
            let flag = match key.as_str() {
                "log_info" => &self.info,
                "log_warning" => &self.warning,
                "log_error" => &self.error,
                "log_file" | "log_verbose_level" | "log_format" => {
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
        Ok(())
    }
}
