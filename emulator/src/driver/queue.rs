//! Work that waits to be run: a graph of operations, run in a random order that it allows.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use rand::Rng;

use super::inject;
use super::state::Driver;
use super::{Answer, Code, host_bytes, host_bytes_mut};
use crate::exec::{self, BadAddress, Launch, Memory};
use crate::module::Module;
use crate::report::Report;

/// Where a copy to the device takes its bytes.
#[derive(Clone)]
pub(crate) enum Source {
    /// Read when the copy was asked for.
    Bytes(Arc<[u8]>),
    /// Read when the copy runs.
    Host(usize, usize),
}

/// A library call, run with the device's memory.
pub(crate) type Call = Arc<dyn Fn(&mut Memory) -> Result<(), Box<Report>> + Send + Sync>;

/// One operation.
#[derive(Clone)]
pub(crate) enum Work {
    Launch {
        module: Arc<Module>,
        kernel: usize,
        launch: Launch,
    },
    ToDevice {
        to: u64,
        from: Source,
    },
    ToHost {
        to: usize,
        from: u64,
        len: usize,
    },
    Copy {
        to: u64,
        from: u64,
        len: usize,
    },
    Fill {
        to: u64,
        pattern: Vec<u8>,
        count: usize,
    },
    Free(u64),
    Host {
        function: extern "C" fn(*mut c_void),
        data: usize,
    },
    Call(Call),
    /// Notes the time of an event.
    Record(u64),
    /// Only orders others.
    Join,
}

impl Work {
    /// What it is, for reports.
    fn name(&self) -> String {
        match self {
            Self::Launch { module, kernel, .. } => {
                format!("kernel {}", module.kernels()[*kernel].name)
            }
            Self::ToDevice { .. } => "a copy to the device".to_owned(),
            Self::ToHost { .. } => "a copy to the host".to_owned(),
            Self::Copy { .. } => "a copy within the device".to_owned(),
            Self::Fill { .. } => "a memset".to_owned(),
            Self::Call(_) => "a matrix product".to_owned(),
            Self::Free(_) | Self::Host { .. } | Self::Record(_) | Self::Join => {
                "another operation".to_owned()
            }
        }
    }
}

pub(super) struct Operation {
    after: Vec<u64>,
    work: Work,
}

/// Operations that have not run, by their number.
#[derive(Default)]
pub(super) struct Queue {
    waiting: BTreeMap<u64, Operation>,
    next: u64,
}

impl Queue {
    pub(super) fn push(&mut self, after: Vec<u64>, work: Work) -> u64 {
        self.next += 1;
        self.waiting.insert(self.next, Operation { after, work });
        self.next
    }

    pub(super) fn is_waiting(&self, operation: u64) -> bool {
        self.waiting.contains_key(&operation)
    }

    pub(super) fn all(&self) -> Vec<u64> {
        self.waiting.keys().copied().collect()
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Operations that nothing before them holds up.
    fn ready(&self) -> Vec<u64> {
        let is_ready = |operation: &Operation| operation.after.iter().all(|o| !self.is_waiting(*o));
        let ready = self
            .waiting
            .iter()
            .filter(|(_, operation)| is_ready(operation));
        ready.map(|(number, _)| *number).collect()
    }
}

impl Driver {
    /// Runs operations until those named have run.
    pub(super) fn run_until(&mut self, operations: &[u64]) -> Answer {
        while operations.iter().any(|o| self.queue.is_waiting(*o)) {
            self.run_one()?;
        }
        self.health()
    }

    /// As [`Self::run_until`], for a host that then knows them to be over.
    pub(super) fn wait_for(&mut self, operations: &[u64]) -> Answer {
        self.run_until(operations)?;
        for operation in operations {
            self.order.host_sees(*operation);
        }
        Ok(())
    }

    /// Runs everything.
    pub(super) fn wait_for_all(&mut self) -> Answer {
        let all = self.queue.all();
        self.wait_for(&all)
    }

    /// Runs one operation out of those that may run.
    pub(super) fn run_one(&mut self) -> Answer {
        self.health()?;
        let ready = self.queue.ready();
        if ready.is_empty() {
            return Ok(());
        }
        let number = ready[self.rng.random_range(0..ready.len())];
        let Some(operation) = self.queue.waiting.remove(&number) else {
            return Ok(());
        };
        let name = operation.work.name();
        self.memory
            .begin(number as u32, self.order.unordered(number));
        let result = self.execute(operation.work);
        self.memory.end();
        self.order.ran(number, name);
        if let Err(code) = result {
            self.queue.clear();
            self.broken = Some(code);
        }
        result
    }

    fn execute(&mut self, work: Work) -> Answer {
        match work {
            Work::Launch {
                module,
                kernel,
                launch,
            } => {
                self.num_launches = self.num_launches.wrapping_add(1);
                if let Some(code) = self.injected(inject::KERNEL) {
                    return Err(code);
                }
                let program = &module.kernels()[kernel];
                let result = exec::launch(
                    &module,
                    program,
                    &mut self.memory,
                    &launch,
                    self.num_launches,
                    self.options,
                );
                let stats = result.map_err(|report| self.report(&report))?;
                self.clock += stats.steps;
                Ok(())
            }
            Work::ToDevice { to, from } => {
                let result = match from {
                    Source::Bytes(bytes) => self.memory.write(to, &bytes),
                    Source::Host(at, len) => {
                        let bytes = host_bytes(at as *const u8, len)?.to_vec();
                        self.memory.write(to, &bytes)
                    }
                };
                self.bad(result, "copy to the device")
            }
            Work::ToHost { to, from, len } => {
                let room = host_bytes_mut(to as *mut u8, len)?;
                let result = self
                    .memory
                    .read(from, len)
                    .map(|bytes| room.copy_from_slice(bytes));
                self.bad(result, "copy to the host")
            }
            Work::Copy { to, from, len } => {
                let result = self.memory.copy(to, from, len);
                self.bad(result, "copy within the device")
            }
            Work::Fill { to, pattern, count } => {
                let result = self.memory.write(to, &pattern.repeat(count));
                self.bad(result, "memset")
            }
            Work::Free(at) => {
                let result = self.memory.free(at);
                self.bad(result, "free")
            }
            Work::Host { function, data } => {
                function(data as *mut c_void);
                Ok(())
            }
            Work::Call(call) => call(&mut self.memory).map_err(|report| self.report(&report)),
            Work::Record(event) => {
                let clock = self.clock;
                if let Some(event) = self.events.get_mut(&event) {
                    event.time = Some(clock);
                }
                Ok(())
            }
            Work::Join => Ok(()),
        }
    }

    /// Prints a report; answers its code.
    pub(crate) fn report(&self, report: &Report) -> Code {
        eprintln!("CUDA emulator (CPU): {report}");
        Code::of(report.kind)
    }

    /// The answer to an operation of the host on addresses.
    pub(super) fn bad(&self, result: Result<(), BadAddress>, name: &str) -> Answer {
        result.map_err(|(kind, what)| {
            self.report(&Report {
                kind,
                kernel: format!("(none: {name})"),
                place: None,
                what,
            })
        })
    }
}
