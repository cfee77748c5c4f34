//! The one device.

use std::ffi::{c_char, c_int};

use super::{Code, api, host_bytes_mut, put};
use crate::exec::{MAX_THREADS, SHARED_BYTES, SHARED_BYTES_OPTIN};

/// The device's name.
const NAME: &[u8] = b"CUDA emulator (CPU)\0";
/// Version of the interface.
const VERSION: c_int = 12_090;
/// Bytes of memory that the device says it has.
pub(super) const MEMORY_BYTES: usize = 2 << 30;
/// Multiprocessors that the device says it has.
pub(super) const NUM_MULTIPROCESSORS: c_int = 4;
/// Distinguishes the device.
const UUID: [u8; 16] = *b"lazybatch-emulat";

/// Values of `CUdevice_attribute`; those not listed are 0.
const ATTRIBUTES: [(c_int, c_int); 38] = [
    (1, MAX_THREADS as c_int),
    (2, 1024),
    (3, 1024),
    (4, 64),
    (5, i32::MAX),
    (6, 65_535),
    (7, 65_535),
    (8, SHARED_BYTES as c_int),
    (9, 65_536),
    (10, 32),
    (11, i32::MAX),
    (12, 65_536),
    (13, 1_000_000),
    (14, 512),
    (15, 1),
    (16, NUM_MULTIPROCESSORS),
    (19, 1),
    (31, 1),
    (36, 1_000_000),
    (37, 64),
    (38, 1 << 20),
    (39, 2048),
    (40, 1),
    (41, 1),
    (75, 8),
    (76, 0),
    (78, 1),
    (79, 1),
    (80, 1),
    (81, 164 << 10),
    (82, 65_536),
    (90, 1),
    (97, SHARED_BYTES_OPTIN as c_int),
    (99, 1),
    (106, 32),
    (111, 1024),
    (115, 1),
    (116, 1),
];

fn check(device: c_int) -> Result<(), Code> {
    if device == 0 {
        Ok(())
    } else {
        Err(Code::InvalidDevice)
    }
}

api! {
    /// Starts the driver.
    fn cuInit(flags: u32) |_driver| { if flags == 0 { Ok(()) } else { Err(Code::InvalidValue) } }
    /// Version of the interface.
    fn cuDriverGetVersion(version: *mut c_int) |_driver| { put(version, VERSION) }
    /// Number of devices.
    fn cuDeviceGetCount(count: *mut c_int) |_driver| { put(count, 1) }
    /// A device by number.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |_driver| {
        check(ordinal)?;
        put(device, 0)
    }
    /// Its name.
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) |_driver| {
        check(device)?;
        let room = host_bytes_mut(name.cast(), len.max(0) as usize)?;
        let count = room.len().min(NAME.len());
        room[..count].copy_from_slice(&NAME[..count]);
        if let Some(last) = room.last_mut() {
            *last = 0;
        }
        Ok(())
    }
    /// What distinguishes it.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) |_driver| {
        check(device)?;
        put(uuid, UUID)
    }
    /// What distinguishes it.
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) |_driver| {
        check(device)?;
        put(uuid, UUID)
    }
    /// Bytes of its memory.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |_driver| {
        check(device)?;
        put(bytes, MEMORY_BYTES)
    }
    /// One of its attributes.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) |_driver| {
        check(device)?;
        let found = ATTRIBUTES.iter().find(|(number, _)| *number == attribute);
        put(value, found.map_or(0, |(_, value)| *value))
    }
    /// Its generation.
    fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, device: c_int) |_driver| {
        check(device)?;
        put(major, 8)?;
        put(minor, 0)
    }
    /// NVRTC asks for tables that only the real driver has.
    fn cuGetExportTable(_table: *mut *const u8, _id: *const u8) |_driver| { Err(Code::NotFound) }
}
