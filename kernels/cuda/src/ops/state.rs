//! Nodes with effects: inputs, states, outputs, stop flags. Idle members and padding leave none.

use lazybatch_graph::{At, Dim, InputId, OutputId, Repeat, StateId};
use lazybatch_kernels::validate::{is_sequence, touched};

use crate::context::DevicePtr;
use crate::exec::{Emitted, Stop, Walk};
use crate::kernels::rows::Span;
use crate::memory::ELEM;

/// Copies `copied` elements and clears `zeroed` behind them.
fn span(from: DevicePtr, to: DevicePtr, copied: usize, zeroed: usize) -> Span {
    Span {
        from,
        to,
        copied: copied as u32,
        zeroed: zeroed as u32,
    }
}

/// Clears elements.
fn clear(to: DevicePtr, elems: usize) -> Span {
    span(DevicePtr::NULL, to, 0, elems)
}

/// The request's input.
pub fn input(w: &mut Walk<'_>, input: InputId, at: At) -> Result<(), String> {
    let decl = w.model.program.input(input);
    let row = decl.ty.row_elems();
    let stride = match w.repeat() {
        Repeat::PerInputStep { stride } => stride as usize,
        _ => 1,
    };
    let out = w.out(0);
    let mut spans = Vec::new();
    for (mem, start, num) in w.spans(w.out_ty(0).lead()) {
        let to = out.add(start * row * ELEM);
        let Some(open) = w.slots.get(mem.slot) else {
            // Rows of nobody.
            spans.push(clear(to, num * row));
            continue;
        };
        let data = open.inputs[input.index()];
        let from = |elem: usize| w.pool.device(data.at + elem * ELEM);
        if is_sequence(decl) && w.repeat().is_loop() {
            let pos = touched(w.repeat(), at, mem.step, mem.len).map(|p| p * stride);
            spans.push(match pos.filter(|p| (p + 1) * row <= data.len) {
                Some(p) => span(from(p * row), to, row, 0),
                None => clear(to, row),
            });
        } else {
            let have = data.len.min(num * row);
            spans.push(span(from(0), to, have, num * row - have));
        }
    }
    w.copy_spans(spans)
}

/// Content of a vector state.
pub fn vec_read(w: &mut Walk<'_>, state: StateId) -> Result<(), String> {
    let (from, _) = w.state_rows()?;
    let ((pool, elems), rows, out) = (w.vector(state), w.frame.samples, w.out(0));
    w.issue(move |i| {
        i.kernels
            .gather_rows(i.stream, pool, from, out, rows, elems)
    });
    Ok(())
}

/// Overwrites a vector state.
pub fn vec_write(w: &mut Walk<'_>, state: StateId) -> Result<(), String> {
    let (_, to) = w.state_rows()?;
    let ((pool, elems), rows, x) = (w.vector(state), w.frame.samples, w.arg(0));
    w.issue(move |i| i.kernels.scatter_rows(i.stream, x, to, pool, rows, elems));
    Ok(())
}

/// Rows of a sequence state.
pub fn seq_read(w: &mut Walk<'_>, state: StateId, at: At) -> Result<(), String> {
    let d = w.out_ty(0).row_elems();
    let lead = w.out_ty(0).lead();
    let out = w.out(0);
    let mut spans = Vec::new();
    for (mem, start, num) in w.spans(lead) {
        let len = w.held(&mem, state);
        let mut to = out.add(start * d * ELEM);
        let (first, rows) = if at == At::All {
            let own = mem.own(lead);
            if len < own {
                let name = &w.model.program.state(state).name;
                return Err(format!(
                    "state {name} of {} holds {len} of {own} rows",
                    mem.request
                ));
            }
            (0, own)
        } else {
            let pos = match at {
                At::End => len.checked_sub(1),
                _ => touched(w.repeat(), at, mem.step, mem.len),
            };
            let pos = pos.filter(|&p| p < len);
            (pos.unwrap_or(0), usize::from(pos.is_some()))
        };
        for (from, rows) in w.runs(&mem, state, first, rows) {
            spans.push(span(from, to, rows * d, 0));
            to = to.add(rows * d * ELEM);
        }
        if rows < num {
            spans.push(clear(to, (num - rows) * d));
        }
    }
    w.copy_spans(spans)
}

/// Writes a sequence state.
pub fn seq_write(w: &mut Walk<'_>, state: StateId, at: At) -> Result<(), String> {
    let d = w.ty(0).row_elems();
    let lead = w.ty(0).lead();
    let x = w.arg(0);
    let mut spans = Vec::new();
    for (mem, start, _) in w.spans(lead) {
        if mem.idle {
            continue;
        }
        let seq = &w.slots.open(mem.slot).sequences[state.index()];
        let (len, room) = (seq.len, seq.pages.len() * crate::kernels::states::PAGE);
        let (pos, rows) = match at {
            At::All => (Some(0), mem.own(lead)),
            At::End => (Some(len), 1),
            _ => (touched(w.repeat(), at, mem.step, mem.len), 1),
        };
        let Some(pos) = pos.filter(|_| rows > 0) else {
            continue;
        };
        if pos + rows > room {
            let name = &w.model.program.state(state).name;
            let last = pos + rows - 1;
            return Err(format!(
                "state {name}: position {last} behind the {room} reserved"
            ));
        }
        // Rows that are skipped become zero.
        if pos > len {
            for (to, rows) in w.runs(&mem, state, len, pos - len) {
                spans.push(clear(to, rows * d));
            }
        }
        let mut from = x.add(start * d * ELEM);
        for (to, rows) in w.runs(&mem, state, pos, rows) {
            spans.push(span(from, to, rows * d, 0));
            from = from.add(rows * d * ELEM);
        }
        let seq = &mut w.slots.open_mut(mem.slot).sequences[state.index()];
        seq.len = seq.len.max(pos + rows);
    }
    w.copy_spans(spans)
}

/// Appends to or sets an output.
pub fn emit(w: &mut Walk<'_>, output: OutputId) -> Result<(), String> {
    let (x, d) = (w.arg(0), w.ty(0).row_elems());
    let lead = w.ty(0).lead();
    let decl = w.model.program.output(output);
    let grows = decl.ty.dims.contains(&Dim::Len);
    let mut spans = Vec::new();
    for (mem, start, _) in w.spans(lead) {
        if mem.idle {
            continue;
        }
        let own = mem.own(lead) * d;
        let out = &mut w.slots.open_mut(mem.slot).outputs[output.index()];
        let first = if grows { out.issued } else { 0 };
        if first + own > out.room {
            return Err(format!(
                "output {} of {}: {} elements, there is room for {}",
                decl.name,
                mem.request,
                first + own,
                out.room
            ));
        }
        out.issued = first + own;
        let to = w.pool.device(out.at + first * ELEM);
        spans.push(span(x.add(start * d * ELEM), to, own, 0));
        w.effects.emitted.push(Emitted {
            slot: mem.slot,
            output: output.index(),
            step: mem.step,
            elems: first + own,
        });
    }
    w.copy_spans(spans)
}

/// Ends the loop of members that chose the stop token.
pub fn stop(w: &mut Walk<'_>, token: i32) -> Result<(), String> {
    let (ids, rows) = (w.arg(0), w.num_rows(w.ty(0)));
    let (flags, first) = w.stage.flags(rows)?;
    let flags = w.stage.push([flags])?;
    for (mem, start, _) in w.spans(w.ty(0).lead()) {
        if !mem.idle {
            w.effects.stops.push(Stop {
                flag: first + start,
                request: mem.request,
                slot: mem.slot,
                step: mem.step,
            });
        }
    }
    w.issue(move |i| i.kernels.stop_flags(i.stream, ids, token, flags, rows));
    Ok(())
}
