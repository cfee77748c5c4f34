//! Graphs: work recorded from streams, and replayed.

use std::ffi::c_int;

use super::queue::Work;
use super::state::{Capture, Driver};
use super::{Answer, Code, api, put};

/// Position of a node in its graph.
pub(super) type NodeIdx = usize;

/// Recorded work, each with the nodes that it comes after.
#[derive(Clone, Default)]
pub(super) struct Graph {
    nodes: Vec<(Vec<NodeIdx>, Work)>,
}

/// Values of `CUstreamCaptureStatus`.
const NOT_CAPTURING: c_int = 0;
const CAPTURING: c_int = 1;

impl Driver {
    /// Records work of a stream that is being captured.
    pub(super) fn record_node(&mut self, key: u64, work: Work) -> Answer {
        let Some(capture) = &self.stream(key)?.capture else {
            return Err(Code::IllegalState);
        };
        let (handle, after) = (capture.graph, capture.after.clone());
        let graph = self.graphs.get_mut(&handle).ok_or(Code::IllegalState)?;
        graph.nodes.push((after, work));
        let node = graph.nodes.len() - 1;
        if let Some(capture) = &mut self.stream(key)?.capture {
            capture.after = vec![node];
        }
        Ok(())
    }

    /// Lets a stream wait for an event that was recorded into a graph: it is recorded too.
    pub(super) fn join_capture(&mut self, key: u64, graph: u64, after: &[NodeIdx]) -> Answer {
        let stream = self.stream(key)?;
        let fresh = || Capture {
            graph,
            after: Vec::new(),
            is_origin: false,
        };
        let capture = stream.capture.get_or_insert_with(fresh);
        if capture.graph != graph {
            return Err(Code::IllegalState);
        }
        capture.after.extend(after);
        Ok(())
    }

    fn begin_capture(&mut self, stream: u64) -> Answer {
        let key = self.stream_key(stream)?;
        let handle = self.handle();
        let stream = self.stream(key)?;
        if stream.capture.is_some() {
            return Err(Code::IllegalState);
        }
        stream.capture = Some(Capture {
            graph: handle,
            after: Vec::new(),
            is_origin: true,
        });
        self.graphs.insert(handle, Graph::default());
        Ok(())
    }

    fn end_capture(&mut self, stream: u64, at: *mut u64) -> Answer {
        let capture = self
            .stream(stream)?
            .capture
            .take()
            .ok_or(Code::IllegalState)?;
        if !capture.is_origin {
            return Err(Code::IllegalState);
        }
        // Work of other streams has to come before the end of this one.
        let mut joined = vec![false; self.graphs.get(&capture.graph).map_or(0, |g| g.nodes.len())];
        let mut open = capture.after;
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut joined[node], true) {
                open.extend(&self.graphs[&capture.graph].nodes[node].0);
            }
        }
        for stream in self.streams.values_mut() {
            if stream
                .capture
                .as_ref()
                .is_some_and(|c| c.graph == capture.graph)
            {
                stream.capture = None;
            }
        }
        if joined.contains(&false) {
            return Err(Code::CaptureUnjoined);
        }
        put(at, capture.graph)
    }

    fn launch_graph(&mut self, handle: u64, stream: u64) -> Answer {
        self.health()?;
        let graph = self.graphs.get(&handle).ok_or(Code::InvalidHandle)?.clone();
        let key = self.stream_key(stream)?;
        let before = self.order_of(key);
        let mut operations = Vec::new();
        for (after, work) in graph.nodes {
            let mut order: Vec<u64> = after.iter().map(|node| operations[*node]).collect();
            order.extend(&before);
            operations.push(self.ask(&order, work));
        }
        let end = self.ask(&[before, operations].concat(), Work::Join);
        let stream = self.stream(key)?;
        stream.last = Some(end);
        stream.waits.clear();
        Ok(())
    }
}

api! {
    /// Starts recording a stream.
    fn cuStreamBeginCapture_v2(stream: u64, _mode: c_int) |driver| { driver.begin_capture(stream) }
    /// Ends recording a stream.
    fn cuStreamEndCapture(stream: u64, graph: *mut u64) |driver| { driver.end_capture(stream, graph) }
    /// Whether a stream is being recorded.
    fn cuStreamIsCapturing(stream: u64, status: *mut c_int) |driver| {
        let is_capturing = driver.stream(stream)?.capture.is_some();
        put(status, if is_capturing { CAPTURING } else { NOT_CAPTURING })
    }
    /// Makes a recorded graph ready to run.
    fn cuGraphInstantiateWithFlags(ready: *mut u64, graph: u64, _flags: u64) |driver| {
        let copy = driver.graphs.get(&graph).ok_or(Code::InvalidHandle)?.clone();
        let handle = driver.handle();
        driver.graphs.insert(handle, copy);
        put(ready, handle)
    }
    /// Runs a graph in the order of a stream.
    fn cuGraphLaunch(ready: u64, stream: u64) |driver| { driver.launch_graph(ready, stream) }
    /// Puts a graph onto the device; nothing to do.
    fn cuGraphUpload(ready: u64, _stream: u64) |driver| {
        driver.graphs.contains_key(&ready).then_some(()).ok_or(Code::InvalidHandle)
    }
    /// Ends a graph that is ready to run.
    fn cuGraphExecDestroy(ready: u64) |driver| {
        driver.graphs.remove(&ready).map(|_| ()).ok_or(Code::InvalidHandle)
    }
    /// Ends a recorded graph.
    fn cuGraphDestroy(graph: u64) |driver| {
        driver.graphs.remove(&graph).map(|_| ()).ok_or(Code::InvalidHandle)
    }
}
