//! Launches of kernels.

use std::ffi::c_void;

use super::queue::Work;
use super::state::Driver;
use super::{Answer, Code, api, get, host_bytes};
use crate::exec::Launch;
use crate::report::{Kind, Report};

impl Driver {
    fn launch_kernel(
        &mut self,
        handle: u64,
        [grid, block]: [[u32; 3]; 2],
        shared: u32,
        stream: u64,
        params: *const *const u8,
    ) -> Answer {
        self.health()?;
        let function = self.functions.get(&handle).ok_or(Code::InvalidHandle)?;
        let program = function.program();
        let mut bytes = vec![0; program.param_bytes()];
        for (i, (offset, len)) in program.params.iter().enumerate() {
            if params.is_null() {
                return Err(Code::InvalidValue);
            }
            // One pointer for each parameter that the kernel declares.
            let at = get(params.wrapping_add(i))?;
            bytes[*offset..offset + len].copy_from_slice(host_bytes(at, *len)?);
        }
        let max_dynamic_shared = function.max_dynamic_shared;
        let launch = Launch {
            grid,
            block,
            dynamic_shared: shared,
            max_dynamic_shared,
            params: bytes,
        };
        // Limits are checked when the launch is asked for, as the real driver does.
        if let Err(what) = launch.check(program) {
            let kernel = program.name.clone();
            return Err(self.report(&Report {
                kind: Kind::LaunchLimits,
                kernel,
                place: None,
                what,
            }));
        }
        let (module, kernel) = (function.module.clone(), function.kernel);
        self.enqueue(
            stream,
            Work::Launch {
                module,
                kernel,
                launch,
            },
        )
    }
}

api! {
    /// Launches a kernel.
    fn cuLaunchKernel(
        function: u64,
        grid_x: u32, grid_y: u32, grid_z: u32,
        block_x: u32, block_y: u32, block_z: u32,
        shared: u32,
        stream: u64,
        params: *const *const u8,
        extra: *const *const c_void,
    ) |driver| {
        if !extra.is_null() {
            return Err(Code::NotSupported);
        }
        let shape = [[grid_x, grid_y, grid_z], [block_x, block_y, block_z]];
        driver.launch_kernel(function, shape, shared, stream, params)
    }
    /// Launches a kernel whose blocks wait for each other, which the emulator's cannot.
    fn cuLaunchCooperativeKernel(
        _function: u64,
        _grid_x: u32, _grid_y: u32, _grid_z: u32,
        _block_x: u32, _block_y: u32, _block_z: u32,
        _shared: u32,
        _stream: u64,
        _params: *const *const u8,
    ) |_driver| { Err(Code::NotSupported) }
}
