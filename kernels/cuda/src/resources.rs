//! What kernels take of a multiprocessor, as the assembler reports it.
//!
//! `ptxas -v` prints three lines for each kernel: its name, its stack and spills, its registers and
//! shared memory.

/// One kernel compiled for one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Name of the kernel.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of registers that were spilled to memory and loaded back, of a thread.
    pub spill_bytes: u32,
    /// Bytes of a thread's stack.
    pub stack_bytes: u32,
    /// Bytes of static shared memory of a block.
    pub shared_bytes: u32,
}

/// The kernels that a log of `--ptxas-options=-v` tells of, in its order.
pub fn parse(log: &str) -> Vec<Resources> {
    let mut kernels: Vec<Resources> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            kernels.push(Resources {
                kernel: rest.split('\'').next().unwrap_or_default().to_owned(),
                ..Resources::default()
            });
            continue;
        }
        let Some(last) = kernels.last_mut() else {
            continue;
        };
        let number = |unit: &str| number_before(line, unit);
        if line.contains("bytes spill stores") {
            last.stack_bytes = number("bytes stack frame").unwrap_or(0);
            let spills = ["bytes spill stores", "bytes spill loads"].map(number);
            last.spill_bytes = spills.into_iter().flatten().sum();
        } else if line.contains(" registers") {
            last.registers = number("registers").unwrap_or(0);
            last.shared_bytes = number("bytes smem").unwrap_or(0);
        }
    }
    kernels
}

/// The number in front of a unit.
fn number_before(line: &str, unit: &str) -> Option<u32> {
    let (before, _) = line.split_once(unit)?;
    before.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_the_assembler_are_read() {
        let log = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'first' for 'sm_80'\n\
            ptxas info    : Function properties for first\n\
            ptxas         .     8 bytes stack frame, 4 bytes spill stores, 16 bytes spill loads\n\
            ptxas info    : Used 96 registers, used 1 barriers, 27136 bytes smem, 412 bytes cmem[0]\n\
            ptxas info    : Compiling entry function 'second' for 'sm_80'\n\
            ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 12 registers, used 0 barriers, 380 bytes cmem[0]\n";
        let first = Resources {
            kernel: "first".to_owned(),
            registers: 96,
            spill_bytes: 20,
            stack_bytes: 8,
            shared_bytes: 27136,
        };
        let second = Resources {
            kernel: "second".to_owned(),
            registers: 12,
            ..Resources::default()
        };
        assert_eq!(parse(log), [first, second]);
        assert_eq!(parse("nothing"), []);
    }
}
