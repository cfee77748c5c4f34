//! Streams and events.

use std::ffi::{c_int, c_void};

use super::queue::Work;
use super::state::{Driver, Event, Stream};
use super::{Answer, Code, api, get, put};

/// Flag of a stream that does not wait for the legacy stream.
const NON_BLOCKING: u32 = 1;
/// Instructions of a warp that count as a millisecond.
const STEPS_PER_MS: f32 = 1e6;

impl Driver {
    fn new_stream(&mut self, at: *mut u64, flags: u32, priority: i32) -> Answer {
        let handle = self.handle();
        let is_blocking = flags & NON_BLOCKING == 0;
        self.streams.insert(
            handle,
            Stream {
                is_blocking,
                priority,
                ..Stream::default()
            },
        );
        put(at, handle)
    }

    fn event(&mut self, handle: u64) -> Result<&mut Event, Code> {
        self.events.get_mut(&handle).ok_or(Code::InvalidHandle)
    }

    fn record(&mut self, event: u64, stream: u64) -> Answer {
        self.event(event)?;
        let key = self.stream_key(stream)?;
        if let Some(capture) = &self.stream(key)?.capture {
            let place = (capture.graph, capture.after.clone());
            self.event(event)?.captured = Some(place);
            return Ok(());
        }
        self.enqueue(key, Work::Record(event))?;
        let operation = self.stream(key)?.last;
        let event = self.event(event)?;
        event.captured = None;
        event.operation = operation;
        event.time = None;
        Ok(())
    }

    fn wait_event(&mut self, stream: u64, event: u64) -> Answer {
        let key = self.stream_key(stream)?;
        let (operation, captured) = {
            let event = self.event(event)?;
            (event.operation, event.captured.clone())
        };
        if let Some((graph, after)) = captured {
            return self.join_capture(key, graph, &after);
        }
        let stream = self.stream(key)?;
        stream.waits.extend(operation);
        Ok(())
    }

    fn elapsed(&mut self, ms: *mut f32, start: u64, end: u64) -> Answer {
        let mut time = |event: u64| {
            let event = self.event(event)?;
            match (event.operation, event.time) {
                (None, _) => Err(Code::InvalidHandle),
                (Some(_), time) => time.ok_or(Code::NotReady),
            }
        };
        let (start, end) = (time(start)?, time(end)?);
        put(ms, (end as f32 - start as f32) / STEPS_PER_MS)
    }
}

api! {
    /// Makes a stream.
    fn cuStreamCreate(stream: *mut u64, flags: u32) |driver| { driver.new_stream(stream, flags, 0) }
    /// Makes a stream; priorities decide nothing.
    fn cuStreamCreateWithPriority(stream: *mut u64, flags: u32, priority: c_int) |driver| {
        driver.new_stream(stream, flags, priority)
    }
    /// Ends a stream; its work still runs.
    fn cuStreamDestroy_v2(stream: u64) |driver| {
        let found = driver.streams.remove(&stream).ok_or(Code::InvalidHandle)?;
        match found.last {
            Some(last) if driver.broken.is_none() => driver.run_until(&[last]),
            _ => Ok(()),
        }
    }
    /// Waits for a stream.
    fn cuStreamSynchronize(stream: u64) |driver| { driver.synchronize(stream) }
    /// Whether a stream has nothing to do; lets something run.
    fn cuStreamQuery(stream: u64) |driver| {
        driver.run_one()?;
        let key = driver.stream_key(stream)?;
        let order = driver.order_of(key);
        if order.iter().any(|o| driver.queue.is_waiting(*o)) {
            return Err(Code::NotReady);
        }
        driver.wait_for(&order)
    }
    /// A stream's priority.
    fn cuStreamGetPriority(stream: u64, priority: *mut c_int) |driver| {
        let found = driver.stream(stream)?.priority;
        put(priority, found)
    }
    /// Whether a stream does not wait for the legacy stream.
    fn cuStreamGetFlags(stream: u64, flags: *mut u32) |driver| {
        let is_blocking = driver.stream(stream)?.is_blocking;
        put(flags, u32::from(!is_blocking))
    }
    /// Lets the next work of a stream come after an event.
    fn cuStreamWaitEvent(stream: u64, event: u64, _flags: u32) |driver| { driver.wait_event(stream, event) }
    /// Lets a function of the host run in the order of a stream.
    fn cuLaunchHostFunc(stream: u64, function: *const c_void, data: *mut c_void) |driver| {
        let at: *const *const c_void = &raw const function;
        if function.is_null() {
            return Err(Code::InvalidValue);
        }
        // A function's address has the size of a pointer; it was checked for null.
        let function = get(at.cast::<extern "C" fn(*mut c_void)>())?;
        driver.enqueue(stream, Work::Host { function, data: data as usize })
    }
    /// Attaches managed memory, of which there is none.
    fn cuStreamAttachMemAsync(_stream: u64, _at: u64, _len: usize, _flags: u32) |_driver| { Err(Code::NotSupported) }
    /// Makes an event.
    fn cuEventCreate(event: *mut u64, _flags: u32) |driver| {
        let handle = driver.handle();
        driver.events.insert(handle, Event::default());
        put(event, handle)
    }
    /// Ends an event.
    fn cuEventDestroy_v2(event: u64) |driver| {
        driver.events.remove(&event).map(|_| ()).ok_or(Code::InvalidHandle)
    }
    /// Records an event in the order of a stream.
    fn cuEventRecord(event: u64, stream: u64) |driver| { driver.record(event, stream) }
    /// Whether an event has come; lets something run.
    fn cuEventQuery(event: u64) |driver| {
        driver.run_one()?;
        let operation = driver.event(event)?.operation;
        if operation.is_some_and(|o| driver.queue.is_waiting(o)) {
            return Err(Code::NotReady);
        }
        driver.wait_for(operation.as_slice())
    }
    /// Waits for an event.
    fn cuEventSynchronize(event: u64) |driver| {
        let operation = driver.event(event)?.operation;
        driver.wait_for(operation.as_slice())
    }
    /// Milliseconds between two events, by instructions that ran; no measure of a GPU's time.
    fn cuEventElapsedTime(ms: *mut f32, start: u64, end: u64) |driver| { driver.elapsed(ms, start, end) }
    /// Milliseconds between two events, by instructions that ran; no measure of a GPU's time.
    fn cuEventElapsedTime_v2(ms: *mut f32, start: u64, end: u64) |driver| { driver.elapsed(ms, start, end) }
}
