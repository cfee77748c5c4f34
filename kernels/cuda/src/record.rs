//! Work for a stream as data: what launchers put into a stream that records is kept, to be issued
//! behind the tables that it reads, compared with what came before, and captured.

use std::ffi::c_void;

use lazybatch_graph::NodeId;
use smallvec::SmallVec;

use crate::context::{DevicePtr, Function, Grid, Stream};
use crate::error::CudaError;
use crate::gemm::Product;
use crate::host::HostCall;

/// One piece of work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A kernel.
    Launch {
        /// Which.
        function: Function,
        /// Its threads.
        grid: Grid,
        /// Its arguments: numbers of the first and the one behind the last.
        args: (u32, u32),
    },
    /// A copy within the device.
    Copy {
        /// Where to.
        to: DevicePtr,
        /// Where from.
        from: DevicePtr,
        /// Bytes.
        bytes: usize,
    },
    /// Bytes that all become the same.
    Fill {
        /// Where.
        to: DevicePtr,
        /// What they become.
        byte: u8,
        /// Bytes.
        bytes: usize,
    },
    /// A product by a library.
    Product(Product),
    /// A node that runs on the host.
    Host(HostCall),
}

/// Work in the order in which it was asked for.
///
/// Two records are equal where they are the same calls with the same arguments: to run one is to
/// run the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// The work.
    pub operations: Vec<Operation>,
    /// The arguments of all kernels, each from a whole word on.
    words: Vec<u64>,
    /// By argument: its first word.
    places: Vec<u32>,
}

impl Record {
    /// Notes a launch.
    ///
    /// # Safety
    /// Each argument must have its size in bytes, and no padding.
    pub unsafe fn launch(
        &mut self,
        function: Function,
        grid: Grid,
        args: &[*mut c_void],
        sizes: &[usize],
    ) {
        let first = self.places.len() as u32;
        for (arg, size) in args.iter().zip(sizes) {
            let at = self.words.len();
            self.places.push(at as u32);
            self.words.resize(at + size.div_ceil(8), 0);
            // SAFETY: there is room for `size` bytes from that word on, and the caller vouches for
            // the argument.
            unsafe {
                let to = self.words.as_mut_ptr().add(at).cast::<u8>();
                std::ptr::copy_nonoverlapping(arg.cast::<u8>().cast_const(), to, *size);
            }
        }
        let args = (first, self.places.len() as u32);
        self.operations.push(Operation::Launch {
            function,
            grid,
            args,
        });
    }

    /// Whether it can be captured: the host has no part in it.
    pub fn is_capturable(&self) -> bool {
        let is_host = |o: &Operation| matches!(o, Operation::Host(_));
        !self.operations.is_empty() && !self.operations.iter().any(is_host)
    }

    /// Puts an operation that is no library's and no host's into `stream`.
    ///
    /// # Errors
    /// What the driver answers.
    ///
    /// # Safety
    /// What its launcher vouched for must still hold.
    pub unsafe fn issue(&self, stream: &Stream, operation: &Operation) -> Result<(), CudaError> {
        match operation {
            Operation::Launch {
                function,
                grid,
                args: (first, end),
            } => {
                let word = |place: &u32| &raw const self.words[*place as usize];
                let args = self.places[*first as usize..*end as usize].iter();
                let mut args: SmallVec<[*mut c_void; 24]> =
                    args.map(|p| word(p).cast_mut().cast()).collect();
                // SAFETY: these are the arguments of the launch; the rest is the caller's.
                unsafe { stream.launch(*function, *grid, &mut args, &[]) }
            }
            // SAFETY: the caller's.
            Operation::Copy { to, from, bytes } => unsafe { stream.copy(*to, *from, *bytes) },
            // SAFETY: the caller's.
            Operation::Fill { to, byte, bytes } => unsafe { stream.fill(*to, *byte, *bytes) },
            Operation::Product(_) | Operation::Host(_) => {
                unreachable!("run by those who have the library and the host's memory")
            }
        }
    }
}

/// Which nodes the operations of a record are of.
#[derive(Debug, Default)]
pub struct Owners(Vec<(usize, NodeId)>);

impl Owners {
    /// Operations up to `end` are of `node`, from where the node before ended.
    pub fn push(&mut self, end: usize, node: NodeId) {
        self.0.push((end, node));
    }

    /// The node of an operation.
    pub fn of(&self, operation: usize) -> Option<NodeId> {
        let at = self.0.partition_point(|(end, _)| *end <= operation);
        self.0.get(at).map(|(_, node)| *node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launched(args: &mut [(u64, usize)]) -> Record {
        let mut record = Record::default();
        let sizes: Vec<usize> = args.iter().map(|a| a.1).collect();
        let at: Vec<*mut c_void> = args.iter_mut().map(|a| (&raw mut a.0).cast()).collect();
        // SAFETY: each argument has up to eight bytes.
        unsafe { record.launch(Function::none(), Grid::row(1, 32), &at, &sizes) };
        record
    }

    #[test]
    fn records_are_equal_where_all_arguments_are() {
        let mut one = [(7, 8), (0xff_0000_0001, 4)];
        // Bytes behind an argument are not part of it.
        let mut same = [(7, 8), (1, 4)];
        assert_eq!(launched(&mut one), launched(&mut same));
        assert_ne!(launched(&mut one), launched(&mut [(7, 8), (2, 4)]));
        assert_ne!(launched(&mut one), launched(&mut [(7, 8), (1, 4), (0, 4)]));
        assert!(launched(&mut one).is_capturable() && !Record::default().is_capturable());
    }

    #[test]
    fn operations_have_the_node_that_asked_for_them() {
        let mut owners = Owners::default();
        let [a, b, c] = [NodeId::new(0), NodeId::new(1), NodeId::new(2)];
        owners.push(2, a);
        owners.push(2, b);
        owners.push(3, c);
        assert_eq!([0, 1, 2].map(|o| owners.of(o)), [Some(a), Some(a), Some(c)]);
        assert_eq!(owners.of(3), None);
    }
}
