//! Windows that slide over the spatial axes of an image: convolution and pooling.

use lazybatch_graph::onnx::{Error, NONE};

use super::Call;
use super::index::{each_coord, strides};

/// Sizes of a sliding window over spatial axes.
#[derive(Debug)]
pub struct Window {
    /// Sizes of the padded side's own axes.
    pub input: Vec<usize>,
    /// Sizes of the window.
    pub kernel: Vec<usize>,
    /// Steps between windows.
    pub strides: Vec<usize>,
    /// Steps within a window.
    pub dilations: Vec<usize>,
    /// Padding before and behind each axis.
    pub pads: Vec<(usize, usize)>,
    /// Number of windows along each axis.
    pub output: Vec<usize>,
}

/// One number per spatial axis from attribute `name`, `least` or more.
pub fn per_axis(call: &Call, name: &str, rank: usize, least: i64) -> Result<Vec<usize>, Error> {
    let v = call.ints(name)?.unwrap_or_else(|| vec![1; rank]);
    if v.len() != rank || v.iter().any(|&n| n < least) {
        let expected = format!("{rank} numbers from {least} on");
        return Err(call.bad(format!("attribute {name:?}"), expected, format!("{v:?}")));
    }
    Ok(v.into_iter().map(|n| n as usize).collect())
}

/// The attribute `pads`: begins, then ends.
pub fn explicit_pads(call: &Call, rank: usize) -> Result<Vec<(usize, usize)>, Error> {
    let v = call.ints("pads")?.unwrap_or_else(|| vec![0; 2 * rank]);
    if v.len() != 2 * rank || v.iter().any(|&n| n < 0) {
        let expected = format!("{} numbers from 0 on", 2 * rank);
        return Err(call.bad("attribute \"pads\"", expected, format!("{v:?}")));
    }
    Ok((0..rank)
        .map(|i| (v[i] as usize, v[rank + i] as usize))
        .collect())
}

impl Window {
    /// A window of `kernel` over `input`, with the strides, dilations and padding of `call`.
    pub fn new(call: &Call, input: &[usize], kernel: Vec<usize>) -> Result<Self, Error> {
        let rank = input.len();
        let strides = per_axis(call, "strides", rank, 1)?;
        let dilations = per_axis(call, "dilations", rank, 1)?;
        if kernel.contains(&0) {
            return Err(call.bad("kernel", "sizes from 1 on", format!("{kernel:?}")));
        }
        let ceil = call.flag("ceil_mode", false)?;
        let auto = call.text("auto_pad", "NOTSET")?;
        let mut pads = explicit_pads(call, rank)?;
        let mut output = Vec::with_capacity(rank);
        for i in 0..rank {
            let (n, stride) = (input[i], strides[i]);
            let span = (kernel[i] - 1)
                .saturating_mul(dilations[i])
                .saturating_add(1);
            let size = match auto {
                "SAME_UPPER" | "SAME_LOWER" => {
                    let size = n.div_ceil(stride);
                    let needed = (size.saturating_sub(1) * stride).saturating_add(span);
                    let total = needed.saturating_sub(n);
                    let small = total / 2;
                    pads[i] = if auto == "SAME_UPPER" {
                        (small, total - small)
                    } else {
                        (total - small, small)
                    };
                    size
                }
                "NOTSET" | "VALID" => {
                    if auto == "VALID" {
                        pads[i] = (0, 0);
                    }
                    let padded = n + pads[i].0 + pads[i].1;
                    match padded.checked_sub(span) {
                        Some(room) if ceil => {
                            let size = room.div_ceil(stride) + 1;
                            // The last window has to start within the input or its left padding.
                            if (size - 1) * stride >= n + pads[i].0 {
                                size - 1
                            } else {
                                size
                            }
                        }
                        Some(room) => room / stride + 1,
                        None => {
                            let expected = format!("at most {padded}, the padded input");
                            return Err(call.bad("window", expected, span));
                        }
                    }
                }
                other => return Err(call.bad("attribute \"auto_pad\"", "a known way", other)),
            };
            output.push(size);
        }
        call.num(&output)?;
        Ok(Self {
            input: input.to_vec(),
            kernel,
            strides,
            dilations,
            pads,
            output,
        })
    }

    /// Positions of a window.
    pub fn num_taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// For each window and each position in it: the input element there, [`NONE`] in the padding.
    pub fn taps(&self, call: &Call) -> Result<Vec<usize>, Error> {
        self.positions(call, |_, _| NONE)
    }

    /// As [`Window::taps`], with `outside(axis coordinates, reach)` for positions in the padding.
    pub fn positions(
        &self,
        call: &Call,
        outside: impl Fn(&[i64], &Self) -> usize,
    ) -> Result<Vec<usize>, Error> {
        let mut all = self.output.clone();
        all.extend(&self.kernel);
        let mut taps = Vec::with_capacity(call.num(&all)?);
        let own = strides(&self.input);
        let rank = self.input.len();
        let mut at = vec![0_i64; rank];
        each_coord(&all, |coord| {
            let (mut sum, mut inside) = (0, true);
            for i in 0..rank {
                let start = coord[i] * self.strides[i] + coord[rank + i] * self.dilations[i];
                at[i] = start as i64 - self.pads[i].0 as i64;
                match usize::try_from(at[i]) {
                    Ok(p) if p < self.input[i] => sum += p * own[i],
                    _ => inside = false,
                }
            }
            taps.push(if inside { sum } else { outside(&at, self) });
        });
        Ok(taps)
    }
}
