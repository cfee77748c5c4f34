//! Convolutions by matrix instructions: near those of the rounded operands, and every image with the
//! same bits alone, among any others, and in every tiling.

use lazybatch_cuda::DevicePtr;
use lazybatch_cuda::kernels::conv::Conv;
use lazybatch_cuda::kernels::conv_matrix::{Filters, Tiling};
use lazybatch_cuda::kernels::{Epilogue, Stored, Weights};
use lazybatch_graph::{Act, Window};

use crate::harness::{Gpu, alone_as_together, close, numbers, on_device, pick, same};
use crate::images::{Case, ROWS, UNEVEN, case, conv_by_definition};
use crate::matrix::{TYPES, rounded};

/// Operands in f32: images, filters, bias, residual.
struct Data {
    x: Vec<f32>,
    weights: Vec<f32>,
    bias: Vec<f32>,
    residual: Vec<f32>,
}

impl Case {
    fn filters_of(&self) -> Filters {
        let [height, width] = self.window.kernel;
        let dims = [self.filters, self.channels / self.groups, height, width];
        Filters::new(dims, self.groups)
    }

    /// Elements of an image, and of its result.
    fn sizes(&self) -> [usize; 2] {
        let [oh, ow] = self.window.output(self.size[0], self.size[1]).unwrap();
        [
            self.channels * self.size[0] * self.size[1],
            self.filters * oh * ow,
        ]
    }

    fn data(&self) -> Data {
        let ([taken, made], area) = (self.sizes(), self.window.kernel.iter().product::<usize>());
        Data {
            x: numbers(1, ROWS * taken),
            weights: numbers(2, self.filters * self.channels / self.groups * area),
            bias: numbers(3, self.filters),
            residual: numbers(4, ROWS * made),
        }
    }

    /// The results of these images.
    fn run(
        &self,
        gpu: &Gpu,
        data: &Data,
        stored: Stored,
        tiling: Option<Tiling>,
        which: &[usize],
    ) -> Vec<f32> {
        let [taken, made] = self.sizes();
        let bits: Vec<u16> = data.weights.iter().map(|v| rounded(stored, *v).0).collect();
        let weights = gpu.upload(&self.filters_of().arranged(&bits));
        let x = gpu.upload(&pick(&data.x, taken, which));
        let bias = gpu.upload(&data.bias);
        let residual = gpu.upload(&pick(&data.residual, made, which));
        let on = |is_on: bool, at| if is_on { at } else { DevicePtr::NULL };
        gpu.output(which.len() * made, |out| {
            let conv = Conv {
                x: x.at(),
                weights: Weights {
                    at: weights.at(),
                    stored,
                },
                out,
                rows: which.len(),
                channels: self.channels,
                size: self.size,
                filters: self.filters,
                window: self.window,
                groups: self.groups,
                epilogue: Epilogue {
                    bias: on(self.with[0], bias.at()),
                    act: self.act,
                    residual: on(self.with[1], residual.at()),
                },
            };
            let ran = gpu.kernels.conv2d_matrix_tiled(&gpu.stream, &conv, tiling);
            ran.unwrap();
        })
    }

    /// What the results should be.
    fn by_definition(&self, data: &Data, stored: Stored) -> Vec<f64> {
        let round = |all: &[f32]| -> Vec<f32> {
            let all = all.iter();
            all.map(|v| rounded(stored, *v).1).collect()
        };
        let (x, weights) = (round(&data.x), round(&data.weights));
        conv_by_definition(self, &x, &weights, &data.bias, &data.residual)
    }
}

fn cases() -> Vec<Case> {
    let square = Window::square;
    let relu = Some(Act::Relu);
    vec![
        // By channels, then elements of the window: tails of filters and pixels, fewer tiles than a
        // block has stages, images that begin anywhere in a tile.
        case(square(7, 2, 3), [3, 17, 17, 12, 1], None, [false, false]),
        case(square(3, 1, 1), [3, 9, 7, 70, 1], relu, [true, false]),
        case(square(1, 1, 0), [40, 5, 5, 33, 1], relu, [true, true]),
        case(square(1, 1, 0), [5, 1, 1, 1, 1], None, [false, false]),
        // Groups of channels and filters, and a window that is not square.
        case(UNEVEN, [4, 8, 8, 20, 2], Some(Act::Silu), [true, true]),
        case(UNEVEN, [60, 6, 5, 36, 3], Some(Act::Relu6), [true, false]),
        // A chain in several slices, the last of which is shorter.
        case(square(3, 1, 1), [50, 5, 5, 17, 1], relu, [true, true]),
        // By 32 channels: one tile, one element of the window.
        case(square(1, 1, 0), [32, 6, 6, 64, 1], None, [false, true]),
        case(square(1, 2, 0), [64, 9, 7, 130, 1], relu, [true, false]),
        case(
            square(3, 1, 1),
            [32, 6, 6, 70, 1],
            Some(Act::Gelu),
            [true, true],
        ),
        case(UNEVEN, [64, 7, 8, 40, 2], None, [true, false]),
        // Windows that are read by 16 bytes, in whole and in parts of a tile; in groups; in slices.
        case(square(1, 1, 0), [64, 10, 10, 70, 1], relu, [true, true]),
        case(square(1, 1, 0), [64, 6, 2, 40, 2], None, [true, false]),
        case(
            square(1, 1, 0),
            [288, 4, 5, 17, 1],
            Some(Act::Silu),
            [false, true],
        ),
        // Two, four and eight slices, of which some are empty.
        case(square(3, 2, 1), [64, 7, 7, 20, 1], relu, [true, true]),
        case(square(1, 1, 0), [1056, 3, 3, 24, 1], None, [false, false]),
        case(square(3, 1, 1), [128, 7, 7, 18, 1], None, [false, true]),
    ]
}

on_device! {
    fn convolutions_are_those_of_the_rounded_operands(gpu) {
        for (i, c) in cases().iter().enumerate() {
            let (data, [_, made]) = (c.data(), c.sizes());
            // One type each, in turn: that is all by which their kernels differ.
            let stored = TYPES[i % 2];
            let want = c.by_definition(&data, stored);
            let mut first: Option<Vec<f32>> = None;
            for tiling in Tiling::ALL {
                let name = format!("conv {i}, {stored:?}, {tiling:?}");
                let got = alone_as_together(&name, ROWS, made, |which| {
                    c.run(gpu, &data, stored, Some(tiling), which)
                });
                // Matrix instructions of a GPU cut off what they add, where the emulator rounds.
                close(&name, &got, &want, 1e-4);
                same(&name, &got, first.get_or_insert(got.clone()));
            }
        }
    }
}

on_device! {
    fn both_types_and_the_tiling_of_the_shape(gpu) {
        for c in [
            case(Window::square(3, 1, 1), [3, 8, 8, 10, 1], None, [false, false]),
            case(Window::square(1, 1, 0), [64, 4, 4, 20, 1], None, [true, false]),
        ] {
            let data = c.data();
            for stored in TYPES {
                let got = c.run(gpu, &data, stored, None, &[0, 1, 2]);
                close(&format!("{stored:?}"), &got, &c.by_definition(&data, stored), 1e-4);
            }
        }
    }
}

on_device! {
    fn what_is_infinite_stays_where_it_is_seen(gpu) {
        // Padding, and steps that fill a chain up, are no numbers of the image.
        for channels in [5, 32] {
            let c = case(Window::square(3, 1, 1), [channels, 9, 9, 8, 1], None, [false, false]);
            let mut data = c.data();
            data.x[0] = f32::INFINITY;
            for tiling in Tiling::ALL {
                let got = c.run(gpu, &data, Stored::Bf16, Some(tiling), &[0, 1]);
                for (at, v) in got.iter().enumerate() {
                    let (image, y, x) = (at / (8 * 81), at % 81 / 9, at % 9);
                    let sees = image == 0 && y <= 1 && x <= 1;
                    assert_eq!(v.is_finite(), !sees, "{channels} channels, {tiling:?}, {at}: {v}");
                }
            }
        }
    }
}

on_device! {
    fn other_types_are_refused(gpu) {
        let conv = Conv {
            x: DevicePtr::NULL,
            weights: Weights::f32(DevicePtr::NULL),
            out: DevicePtr::NULL,
            rows: 1,
            channels: 3,
            size: [4, 4],
            filters: 8,
            window: Window::square(3, 1, 1),
            groups: 1,
            epilogue: Epilogue::default(),
        };
        let error = gpu.kernels.conv2d_matrix(&gpu.stream, &conv).unwrap_err();
        assert!(error.to_string().contains("expected weights of f16 or bf16, got F32"), "{error}");
    }
}
