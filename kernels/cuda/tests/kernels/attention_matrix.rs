//! Attention within members by matrix instructions: near that of the rounded operands, and every row
//! with the same bits alone and among any others.

use lazybatch_cuda::DevicePtr;
use lazybatch_cuda::kernels::Stored;
use lazybatch_cuda::kernels::attention::Attention;
use lazybatch_graph::Seen;

use crate::attention::{Form, attend_packed, check_members, heads, member_rows};
use crate::harness::on_device;
use crate::matrix::{TYPES, rounded};

on_device! {
    fn members_attend_by_matrix_instructions(gpu) {
        // More queries than a block has, whole tiles, tails, one row, none.
        let sizes = [(70, 1), (1, 4), (16, 0), (33, 3), (0, 2), (64, 0)];
        // Tiles that none of a block's queries sees, and none of a warp's.
        let long = [(170, 1), (1, 4), (64, 3), (0, 2)];
        for (sizes, form) in [
            (&sizes[..], Form::new(heads(2, 2, 8), false)),
            (&sizes, Form::new(heads(4, 2, 5), true)),
            (&sizes, Form::new(heads(1, 1, 33), true)),
            (&sizes, Form::new(heads(2, 1, 80), false)),
            (&sizes, Form::new(heads(1, 1, 128), true)),
            (&long, Form::new(heads(2, 1, 7), false).within(20)),
            (&long, Form::new(heads(1, 1, 34), true).within(3)),
            (&sizes, Form::new(heads(4, 2, 6), false).biased(70)),
            (&sizes, Form::new(heads(2, 2, 65), true).biased(80)),
            (&long, Form::new(heads(2, 1, 40), false).within(9).biased(170)),
            (&sizes, Form::new(heads(2, 1, 20), true).capped(2.0)),
        ] {
            let h = form.heads;
            let data = member_rows(sizes, h);
            let members = (sizes, &data[..]);
            for stored in TYPES {
                let round = |v: f32| rounded(stored, v).1;
                // Shares are rounded too, so a result is off by their last digit, times the largest
                // value, 7.
                let tolerance = if stored == Stored::F16 { 4e-3 } else { 3e-2 };
                let got = check_members(members, &form, round, tolerance, |which| {
                    attend_packed(gpu, members, which, &form, |a| {
                        gpu.kernels.attention_matrix(&gpu.stream, a, stored).unwrap();
                    })
                });
                // A row that sees one key has that key's values, which are rounded once.
                for (feature, v) in got[1][..h.query * h.dim].iter().enumerate() {
                    let head = feature / h.dim / (h.query / h.kv);
                    let value = data[1][2][head * h.dim + feature % h.dim];
                    assert_eq!(v.to_bits(), round(value).to_bits(), "{h:?}, feature {feature}");
                }
            }
        }
    }
}

on_device! {
    fn other_types_and_wider_heads_are_refused(gpu) {
        let call = |dim| Attention {
            q: DevicePtr::NULL,
            k: DevicePtr::NULL,
            v: DevicePtr::NULL,
            out: DevicePtr::NULL,
            members: DevicePtr::NULL,
            num_members: 1,
            max_rows: 1,
            heads: heads(1, 1, dim),
            seen: Seen::ALL,
            cap: None,
            bias: None,
        };
        let error = |dim, stored| {
            let ran = gpu.kernels.attention_matrix(&gpu.stream, &call(dim), stored);
            ran.unwrap_err().to_string()
        };
        let wide = error(129, Stored::F16);
        assert!(wide.contains("expected heads of 1 to 128 features, got 129"), "{wide}");
        let plain = error(8, Stored::F32);
        assert!(plain.contains("expected f16 or bf16, got F32"), "{plain}");
    }
}
