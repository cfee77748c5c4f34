//! Element by element.

use half::{bf16, f16};
use lazybatch_cuda::DevicePtr;
use lazybatch_cuda::kernels::elementwise::Step;
use lazybatch_cuda::kernels::{Epilogue, Stored};
use lazybatch_graph::chain::{self, With};
use lazybatch_graph::{Act, Bin};
use lazybatch_kernels::cpu;
use lazybatch_kernels::reference::math;

use crate::harness::{close, numbers, on_device, same};
use crate::rows::table;

const ACTS: [Act; 6] = [
    Act::Relu,
    Act::Relu6,
    Act::Gelu,
    Act::Tanh,
    Act::Sigmoid,
    Act::Silu,
];

on_device! {
    fn binary_ops_broadcast(gpu) {
        for (len, period) in [(1, 1), (300, 300), (300, 15), (300, 5), (70_000, 7)] {
            let (a, b) = (numbers(1, len), numbers(2, period));
            let (at, bt) = (gpu.upload(&a), gpu.upload(&b));
            for op in [Bin::Add, Bin::Sub, Bin::Mul] {
                let got: Vec<f32> = gpu.output(len, |out| {
                    gpu.kernels
                        .binary(&gpu.stream, op, at.at(), bt.at(), out, len, period)
                        .unwrap();
                });
                for i in 0..len {
                    let (x, y) = (a[i], b[i % period]);
                    let want = match op {
                        Bin::Add => x + y,
                        Bin::Sub => x - y,
                        Bin::Mul => x * y,
                    };
                    assert_eq!(got[i].to_bits(), want.to_bits(), "{op:?} {i}");
                }
            }
        }
    }
}

on_device! {
    fn activations_are_accurate_everywhere(gpu) {
        let mut x: Vec<f32> = (-2000..2000).map(|i| i as f32 * 0.01).collect();
        x.extend([0.0, -0.0, 1e-30, -1e-30, 80.0, -80.0, 200.0, -200.0]);
        let from = gpu.upload(&x);
        for act in ACTS {
            let got: Vec<f32> = gpu.output(x.len(), |out| {
                gpu.kernels.unary(&gpu.stream, act, from.at(), out, x.len()).unwrap();
            });
            let want: Vec<f64> = x.iter().map(|v| math::act(act, f64::from(*v))).collect();
            // The approximation of erf is off by 1e-7 far out, times a large x.
            let tolerance = if act == Act::Gelu { 2e-5 } else { 2e-6 };
            close(&format!("{act:?}"), &got, &want, tolerance);
            let on_cpu = x.chunks(16).flat_map(|chunk| {
                let lanes = cpu::math::act(act, cpu::math::load_tail(chunk, 0.0));
                lanes[..chunk.len()].to_vec()
            });
            same(&format!("{act:?} on the cpu device"), &got, &on_cpu.collect::<Vec<_>>());
        }
        // In place.
        gpu.kernels.unary(&gpu.stream, Act::Relu, from.at(), from.at(), x.len()).unwrap();
        let got: Vec<f32> = gpu.download(&from, x.len());
        assert!(got.iter().zip(&x).all(|(g, x)| *g == x.max(0.0)));
        gpu.kernels.scale(&gpu.stream, -1.75, from.at(), from.at(), x.len()).unwrap();
        let scaled: Vec<f32> = gpu.download(&from, x.len());
        assert!(scaled.iter().zip(&got).all(|(s, g)| *s == g * -1.75));
        let nan = gpu.upload(&[f32::NAN]);
        for act in [Act::Gelu, Act::Tanh, Act::Sigmoid, Act::Silu] {
            let got: Vec<f32> = gpu.output(1, |out| {
                gpu.kernels.unary(&gpu.stream, act, nan.at(), out, 1).unwrap();
            });
            assert!(got[0].is_nan(), "{act:?}");
        }
    }
}

on_device! {
    fn epilogues_add_activate_and_add(gpu) {
        let (rows, features) = (9, 13);
        let len = rows * features;
        let (x, b, r) = (numbers(1, len), numbers(2, features), numbers(3, len));
        let (xt, bt, rt) = (gpu.upload(&x), gpu.upload(&b), gpu.upload(&r));
        for which in 0..8 {
            let on = |bit: u32, at: DevicePtr| if which >> bit & 1 == 1 { at } else { DevicePtr::NULL };
            let epilogue = Epilogue {
                bias: on(0, bt.at()),
                act: (which >> 1 & 1 == 1).then_some(Act::Gelu),
                residual: on(2, rt.at()),
            };
            let got: Vec<f32> = gpu.output(len, |out| {
                gpu.kernels
                    .epilogue(&gpu.stream, xt.at(), out, len, features, &epilogue)
                    .unwrap();
            });
            let want = (0..len).map(|i| {
                let mut v = f64::from(x[i]);
                if !epilogue.bias.is_null() {
                    v += f64::from(b[i % features]);
                }
                if let Some(act) = epilogue.act {
                    v = math::act(act, v);
                }
                if !epilogue.residual.is_null() {
                    v += f64::from(r[i]);
                }
                v
            });
            close("epilogue", &got, &want.collect::<Vec<_>>(), 1e-6);
        }
    }
}

on_device! {
    fn conversions_round_to_nearest_even(gpu) {
        let mut x: Vec<f32> = numbers(7, 500).into_iter().map(|v| v * 1000.0).collect();
        // Subnormal halves, ties, the largest, what is too large, infinity.
        x.extend((0..200).map(|i| i as f32 * 1.3e-8));
        x.extend([1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0]);
        x.extend([65504.0, 65520.0, 3.39e38, f32::MAX, f32::INFINITY, -0.0, f32::MIN_POSITIVE / 8.0]);
        let from = gpu.upload(&x);
        let run = |to: Stored| -> Vec<u16> {
            gpu.output(x.len(), |out| {
                gpu.kernels.convert(&gpu.stream, to, from.at(), out, x.len()).unwrap();
            })
        };
        let want: Vec<u16> = x.iter().map(|v| f16::from_f32(*v).to_bits()).collect();
        assert_eq!(run(Stored::F16), want);
        let want: Vec<u16> = x.iter().map(|v| bf16::from_f32(*v).to_bits()).collect();
        assert_eq!(run(Stored::Bf16), want);
        let nan = gpu.upload(&[f32::NAN, f32::from_bits(0x7f80_0001)]);
        let got: Vec<u16> = gpu.output(2, |out| {
            gpu.kernels.convert(&gpu.stream, Stored::Bf16, nan.at(), out, 2).unwrap();
        });
        assert!(got.iter().all(|b| bf16::from_bits(*b).is_nan()));
    }
}

on_device! {
    fn a_chain_has_the_bits_of_its_steps(gpu) {
        let len = 700;
        let (x, row, other) = (numbers(1, len), numbers(2, 7), numbers(3, len));
        let (at, row_at, other_at) = (gpu.upload(&x), gpu.upload(&row), gpu.upload(&other));
        let operands = [(at.at(), len), (row_at.at(), 7), (other_at.at(), len)];
        let with = With::Operand;
        let chain = [
            chain::Step::Binary(Bin::Mul, With::Itself),
            chain::Step::Scale(0.25),
            chain::Step::Binary(Bin::Add, with(1)),
            chain::Step::Unary(Act::Tanh),
            chain::Step::SubFrom(with(2)),
            chain::Step::Binary(Bin::Sub, with(0)),
            chain::Step::Binary(Bin::Mul, with(2)),
            chain::Step::Binary(Bin::Add, With::Itself),
        ];
        let steps = chain.map(|s| Step::new(s, s.operand().map(|i| operands[i])).unwrap());
        let steps_at = table(gpu, &steps);
        let want: Vec<f32> = (0..len)
            .map(|i| {
                let [x, row, other] = [x[i], row[i % 7], other[i]];
                let v = other - cpu::math::tanh(x * x * 0.25 + row);
                (v - x) * other * 2.0
            })
            .collect();
        let run = |out| {
            let (k, s) = (&gpu.kernels, &gpu.stream);
            k.elementwise(s, at.at(), out, len, steps_at.at(), steps.len()).unwrap();
        };
        let got: Vec<f32> = gpu.output(len, run);
        same("a chain", &got, &want);
        // In place, though a step reads where the chain began.
        run(at.at());
        same("in place", &gpu.download(&at, len), &want);
    }
}
