//! The two functions of the device's runtime that kernels call: `printf` and a failing `assert`.
//!
//! Their arguments are in the thread's own memory, where the call's parameters lie.

use super::access::Place;
use super::block::World;
use super::warp::{Warp, lanes};
use crate::ptx::ast::Space;
use crate::ptx::forms::LANES;
use crate::ptx::program::RuntimeCall;
use crate::report::{Fault, Kind};

/// Longest text that is read from the device.
const MAX_TEXT: usize = 4096;

impl World<'_> {
    /// Lanes one after another.
    pub(super) fn call_runtime(
        &mut self,
        warp: &Warp,
        call: &RuntimeCall,
        active: u32,
    ) -> Result<(), Box<Fault>> {
        for lane in lanes(active) {
            match call {
                RuntimeCall::Print {
                    format,
                    arguments,
                    result,
                } => {
                    let (format, arguments) = (
                        self.param(warp, lane, *format, 8),
                        self.param(warp, lane, *arguments, 8),
                    );
                    let format = self.device_text(warp, lane, format)?;
                    let text = self.formatted(warp, lane, &format, arguments)?;
                    print!("{text}");
                    let at =
                        (warp.index * LANES + lane) * self.program.local_bytes + *result as usize;
                    self.put(Place::Local(at), &(text.len() as u32).to_le_bytes());
                }
                RuntimeCall::Assert {
                    message,
                    file,
                    line,
                } => {
                    let (message, file) = (
                        self.param(warp, lane, *message, 8),
                        self.param(warp, lane, *file, 8),
                    );
                    let line = self.param(warp, lane, *line, 4);
                    let (message, file) = (
                        self.device_text(warp, lane, message)?,
                        self.device_text(warp, lane, file)?,
                    );
                    let what = format!("assertion `{message}` does not hold, {file}:{line}");
                    return Err(Fault::new(Kind::Assert, lane, what));
                }
            }
        }
        Ok(())
    }

    /// A parameter of the call.
    fn param(&mut self, warp: &Warp, lane: usize, offset: u64, len: usize) -> u64 {
        let at = (warp.index * LANES + lane) * self.program.local_bytes + offset as usize;
        self.word(Place::Local(at), len)
    }

    /// Text at a generic address, up to its zero.
    fn device_text(
        &mut self,
        warp: &Warp,
        lane: usize,
        address: u64,
    ) -> Result<String, Box<Fault>> {
        let mut bytes = Vec::new();
        while bytes.len() < MAX_TEXT {
            let place = self.place(Space::Generic, address + bytes.len() as u64, 1, warp, lane)?;
            match self.word(place, 1) as u8 {
                0 => break,
                byte => bytes.push(byte),
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// `printf`'s text. Widths and precisions are kept for numbers; other flags are left out.
    fn formatted(
        &mut self,
        warp: &Warp,
        lane: usize,
        format: &str,
        arguments: u64,
    ) -> Result<String, Box<Fault>> {
        let mut out = String::new();
        let (mut rest, mut at) = (format, arguments);
        while let Some((before, after)) = rest.split_once('%') {
            out += before;
            let Some(end) =
                after.find(|c: char| c.is_ascii_alphabetic() && !"lhz".contains(c) || c == '%')
            else {
                rest = after;
                break;
            };
            let (flags, conversion) = (&after[..end], after[end..].chars().next().unwrap_or('%'));
            rest = &after[end + conversion.len_utf8()..];
            if conversion == '%' {
                out.push('%');
                continue;
            }
            let is_wide =
                flags.contains('l') || flags.contains('z') || "fFeEgGaAsp".contains(conversion);
            let len = if is_wide { 8 } else { 4 };
            at = at.next_multiple_of(len as u64);
            let place = self.place(Space::Generic, at, len, warp, lane)?;
            let bits = self.word(place, len);
            at += len as u64;
            let digits = flags.trim_end_matches(['l', 'h', 'z']);
            let (width, precision) = digits.split_once('.').unwrap_or((digits, ""));
            let width = width.parse::<usize>().unwrap_or(0);
            let precision = precision.parse::<usize>().unwrap_or(6);
            let signed = if is_wide {
                bits as i64
            } else {
                i64::from(bits as i32)
            };
            let text = match conversion {
                'd' | 'i' => signed.to_string(),
                'u' => bits.to_string(),
                'x' => format!("{bits:x}"),
                'X' => format!("{bits:X}"),
                'p' => format!("{bits:#x}"),
                'c' => char::from(bits as u8).to_string(),
                's' => self.device_text(warp, lane, bits)?,
                'e' | 'E' => format!("{:.precision$e}", f64::from_bits(bits)),
                _ => format!("{:.precision$}", f64::from_bits(bits)),
            };
            out += &format!("{text:>width$}");
        }
        Ok(out + rest)
    }
}
