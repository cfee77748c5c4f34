//! The program's own code on huge pages.
//!
//! Behind a pause of milliseconds nothing of what a call runs is in caches, nor where its pages lie: a
//! call of the server touches hundreds of pages of code. On pages of 2 MiB these are a few. What lies
//! between such pages is copied to memory of that kind, which then takes its place; profilers that go by
//! mappings do not know the file any more. The rest of the code stays where it is, as all of it does where
//! the system has no such pages, or lets nothing be run that was written.
//!
//! Source: mremap(2), madvise(2) `MADV_HUGEPAGE`; the kernel's Documentation/admin-guide/mm/transhuge.rst.

/// Moves this program's code to huge pages; how many bytes of it. 0 where the system has none, does not
/// let memory be made executable, or is not Linux on x86-64: the code stays where it is then.
pub fn move_code() -> usize {
    sys::move_code().unwrap_or(0)
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(unsafe_code, reason = "mappings of code have no safe interface")]
mod sys {
    use std::ptr;

    use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_EXEC, PROT_READ, PROT_WRITE};

    /// Bytes of a huge page.
    const PAGE: usize = 2 << 20;

    pub fn move_code() -> Option<usize> {
        let enabled =
            std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
        if enabled.contains("[never]") {
            return None;
        }
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let (start, end) = mapping(&maps, move_code as *const () as usize)?;
        let start = start.next_multiple_of(PAGE);
        let len = (end / PAGE * PAGE).checked_sub(start)?;
        (len > 0 && replace(start, len)).then_some(len)
    }

    /// Begin and end of the executable mapping that holds `address`.
    fn mapping(maps: &str, address: usize) -> Option<(usize, usize)> {
        maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let start = usize::from_str_radix(start, 16).ok()?;
            let end = usize::from_str_radix(end, 16).ok()?;
            let holds = (start..end).contains(&address) && rest.starts_with("r-x");
            holds.then_some((start, end))
        })
    }

    /// Puts a copy on huge pages in the place of `len` bytes of code at `start`, whole huge pages.
    fn replace(start: usize, len: usize) -> bool {
        let size = len + PAGE;
        let writable = PROT_READ | PROT_WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let whole = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size,
                writable,
                MAP_PRIVATE | MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if whole == MAP_FAILED {
            return false;
        }
        let skipped = (whole as usize).next_multiple_of(PAGE) - whole as usize;
        let copy = whole.wrapping_byte_add(skipped);
        let code = ptr::with_exposed_provenance_mut::<libc::c_void>(start);
        // SAFETY: `copy` is `len` bytes within the new mapping, which nobody else knows; the code is
        // mapped, readable, never written, and elsewhere. Its place is taken by the same bytes, in one
        // call of the kernel, so that threads that run it go on.
        let is_moved = unsafe {
            libc::madvise(copy, len, libc::MADV_HUGEPAGE) == 0
                && {
                    ptr::copy_nonoverlapping(code.cast::<u8>(), copy.cast::<u8>(), len);
                    libc::mprotect(copy, len, PROT_READ | PROT_EXEC) == 0
                }
                && {
                    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                    libc::mremap(copy, len, len, flags, code) != MAP_FAILED
                }
        };
        // SAFETY: what is left of the new mapping is nobody's.
        unsafe {
            if is_moved {
                if skipped > 0 {
                    libc::munmap(whole, skipped);
                }
                libc::munmap(copy.wrapping_byte_add(len), PAGE - skipped);
            } else {
                libc::munmap(whole, size);
            }
        }
        is_moved
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod sys {
    pub fn move_code() -> Option<usize> {
        None
    }
}
