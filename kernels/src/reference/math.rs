//! Elementary functions in double precision.
//!
//! Source: `erf` by its Maclaurin series below 3 and the continued fraction of `erfc` above
//! (Abramowitz and Stegun 7.1.5 and 7.1.14).

use lazybatch_graph::Act;

/// Error function.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a < 3.0 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-18 * sum.abs() {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        return (2.0 / std::f64::consts::PI.sqrt() * sum).copysign(x);
    }
    let mut tail = a;
    for n in (1..60).rev() {
        tail = a + f64::from(n) / 2.0 / tail;
    }
    (1.0 - (-a * a).exp() / std::f64::consts::PI.sqrt() / tail).copysign(x)
}

/// One activation.
pub fn act(act: Act, x: f64) -> f64 {
    match act {
        Act::Relu => x.max(0.0),
        Act::Relu6 => x.clamp(0.0, 6.0),
        Act::Gelu => x * 0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Act::Tanh => x.tanh(),
        Act::Sigmoid => sigmoid(x),
        Act::Silu => x * sigmoid(x),
    }
}

/// Logistic function.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_has_known_values() {
        for (x, want) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_8),
            (1.0, 0.842_700_792_9),
            (3.5, 0.999_999_256_9),
        ] {
            assert!(
                (erf(x) - want).abs() < 1e-9 && (erf(-x) + want).abs() < 1e-9,
                "erf({x})"
            );
        }
    }
}
