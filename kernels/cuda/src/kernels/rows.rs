//! Rows that move: copies, gathers, scatters, concatenation, slices, and one row per member.
//!
//! Elements are 4 bytes of any kind (f32 or i32).

use lazybatch_graph::Op;

use super::{Kernels, Source, THREADS, Takes, launch, size};
use crate::context::{DevicePtr, Grid, Stream};
use crate::error::CudaError;

pub(super) const SOURCE: Source = Source {
    file: "rows.cu",
    text: include_str!("../../cuda/rows.cu"),
    kernels: &[
        "copy_columns",
        "copy_spans",
        "mean_rows",
        "move_rows",
        "pick_rows",
    ],
    takes: |_, node| {
        Takes::those(matches!(
            node.op,
            Op::Input { .. }
                | Op::Reshape { .. }
                | Op::Concat
                | Op::Slice { .. }
                | Op::MeanRows
                | Op::FirstRow
                | Op::LastRow
                | Op::VecRead { .. }
                | Op::VecWrite { .. }
                | Op::SeqRead { .. }
                | Op::SeqWrite { .. }
                | Op::Emit { .. }
        ))
    },
};

/// A piece of memory to be copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Span {
    /// Where it is.
    pub from: DevicePtr,
    /// Where it goes.
    pub to: DevicePtr,
    /// Elements of 4 bytes to copy.
    pub copied: u32,
    /// Elements behind them, in `to`, that become zero.
    pub zeroed: u32,
}

/// Elements that one block of [`Kernels::copy_spans`] copies in one go.
const PIECE: u32 = 4 * THREADS;

impl Kernels {
    /// Copies pieces from anywhere to anywhere: `spans` is a table of [`Span`]s; `max_elems` is the
    /// most elements (copied and zeroed) of one of them. Pieces that are written may not overlap.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn copy_spans(
        &self,
        stream: &Stream,
        spans: DevicePtr,
        num_spans: usize,
        max_elems: usize,
    ) -> Result<(), CudaError> {
        if num_spans == 0 || max_elems == 0 {
            return Ok(());
        }
        let num_spans = size("copy_spans", "spans", num_spans)?;
        let elems = size("copy_spans", "elements", max_elems)?;
        let grid = Grid {
            blocks: [elems.div_ceil(PIECE).min(256), num_spans.min(65_535), 1],
            ..Grid::row(1, THREADS)
        };
        launch!(self, stream, "copy_spans", grid, spans, num_spans)
    }

    /// `out[i] = x[table[i]]`: `table: [num_rows]` i32; a negative entry gives a row of zeros.
    /// `x: [_, row_elems]`, `out: [num_rows, row_elems]`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn gather_rows(
        &self,
        stream: &Stream,
        x: DevicePtr,
        table: DevicePtr,
        out: DevicePtr,
        num_rows: usize,
        row_elems: usize,
    ) -> Result<(), CudaError> {
        self.move_rows(stream, x, table, out, num_rows, row_elems, 0)
    }

    /// `out[table[i]] = x[i]`: `table: [num_rows]` i32; a negative entry is skipped, no entry may
    /// come twice. `x: [num_rows, row_elems]`, or null for zeros.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn scatter_rows(
        &self,
        stream: &Stream,
        x: DevicePtr,
        table: DevicePtr,
        out: DevicePtr,
        num_rows: usize,
        row_elems: usize,
    ) -> Result<(), CudaError> {
        self.move_rows(stream, x, table, out, num_rows, row_elems, 1)
    }

    fn move_rows(
        &self,
        stream: &Stream,
        x: DevicePtr,
        table: DevicePtr,
        out: DevicePtr,
        num_rows: usize,
        row_elems: usize,
        scatters: u32,
    ) -> Result<(), CudaError> {
        if num_rows == 0 || row_elems == 0 {
            return Ok(());
        }
        let rows = size("move_rows", "rows", num_rows)?;
        let elems = size("move_rows", "elements of a row", row_elems)?;
        let grid = Grid {
            blocks: [elems.div_ceil(PIECE).min(256), rows.min(65_535), 1],
            ..Grid::row(1, THREADS.min(elems.div_ceil(4).next_multiple_of(32)))
        };
        launch!(
            self,
            stream,
            "move_rows",
            grid,
            x,
            table,
            out,
            rows,
            elems,
            scatters
        )
    }

    /// Columns of rows: `out[r, to..to + len] = x[r, from..from + len]` for `x: [rows, x_width]`,
    /// `out: [rows, out_width]`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn copy_columns(
        &self,
        stream: &Stream,
        (x, x_width, from): (DevicePtr, usize, usize),
        (out, out_width, to): (DevicePtr, usize, usize),
        rows: usize,
        len: usize,
    ) -> Result<(), CudaError> {
        const KERNEL: &str = "copy_columns";
        super::expect(
            KERNEL,
            from + len <= x_width && to + len <= out_width,
            "columns within both rows",
            format_args!(
                "{from}..{} of {x_width}, {to}..{} of {out_width}",
                from + len,
                to + len
            ),
        )?;
        if rows == 0 || len == 0 {
            return Ok(());
        }
        size(
            KERNEL,
            "elements of all rows",
            rows.saturating_mul(x_width.max(out_width)),
        )?;
        let (rows, len) = (rows as u32, len as u32);
        let (x_width, from) = (x_width as u32, from as u32);
        let (out_width, to) = (out_width as u32, to as u32);
        let grid = super::per_item(rows * len);
        launch!(
            self, stream, KERNEL, grid, x, x_width, from, out, out_width, to, rows, len
        )
    }

    /// Concatenation of rows: `parts` are `(x: [rows, width], width)`; `out: [rows, all widths]`.
    /// One launch for each part.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn concat(
        &self,
        stream: &Stream,
        parts: &[(DevicePtr, usize)],
        out: DevicePtr,
        rows: usize,
    ) -> Result<(), CudaError> {
        let all = parts.iter().map(|part| part.1).sum();
        let mut to = 0;
        for &(x, width) in parts {
            self.copy_columns(stream, (x, width, 0), (out, all, to), rows, width)?;
            to += width;
        }
        Ok(())
    }

    /// `out[r] = x[r, start..start + len]`, `x: [rows, width]`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn slice(
        &self,
        stream: &Stream,
        x: DevicePtr,
        out: DevicePtr,
        rows: usize,
        width: usize,
        start: usize,
        len: usize,
    ) -> Result<(), CudaError> {
        self.copy_columns(stream, (x, width, start), (out, len, 0), rows, len)
    }

    /// `out[m.sample]` = mean of the own rows of member `m` of `x: [_, width]`, added in order.
    /// `members` is a table of [`super::Member`]s.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn mean_rows(
        &self,
        stream: &Stream,
        x: DevicePtr,
        members: DevicePtr,
        out: DevicePtr,
        num_members: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        let Some((grid, width)) = one_per_member("mean_rows", num_members, width)? else {
            return Ok(());
        };
        launch!(self, stream, "mean_rows", grid, x, members, out, width)
    }

    /// `out[m.sample]` = first row of member `m` of `x: [_, width]`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn first_row(
        &self,
        stream: &Stream,
        x: DevicePtr,
        members: DevicePtr,
        out: DevicePtr,
        num_members: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        let Some((grid, width)) = one_per_member("first_row", num_members, width)? else {
            return Ok(());
        };
        launch!(
            self,
            stream,
            "pick_rows",
            grid,
            x,
            members,
            out,
            width,
            0u32
        )
    }

    /// `out[m.sample]` = last own row of member `m` of `x: [_, width]`.
    ///
    /// # Errors
    /// Sizes out of range, or what the driver answers.
    pub fn last_row(
        &self,
        stream: &Stream,
        x: DevicePtr,
        members: DevicePtr,
        out: DevicePtr,
        num_members: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        let Some((grid, width)) = one_per_member("last_row", num_members, width)? else {
            return Ok(());
        };
        launch!(
            self,
            stream,
            "pick_rows",
            grid,
            x,
            members,
            out,
            width,
            1u32
        )
    }
}

/// Blocks over columns and members.
fn one_per_member(
    kernel: &'static str,
    num_members: usize,
    width: usize,
) -> Result<Option<(Grid, u32)>, CudaError> {
    if num_members == 0 || width == 0 {
        return Ok(None);
    }
    super::expect(
        kernel,
        num_members <= 65_535,
        "at most 65535 members",
        num_members,
    )?;
    let width = size(kernel, "elements of a row", width)?;
    let threads = THREADS.min(width.next_multiple_of(32));
    let grid = Grid {
        blocks: [width.div_ceil(threads), num_members as u32, 1],
        ..Grid::row(1, threads)
    };
    Ok(Some((grid, width)))
}
