//! Arrival processes: seeded sources of arrival times.
//!
//! Gaps are drawn as real numbers and rounded to whole nanoseconds one by one, so the mean rate is
//! not biased. Rates that change over time ([`Process::OnOff`], [`Process::Piecewise`]) are
//! Poisson processes sampled exactly, by inversion: an exponential amount of work is used up at
//! the rate of each stretch in turn.

use std::fmt;
use std::str::FromStr;

use lazybatch_sla::{Nanos, Time};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, Gamma};

use crate::error::{Error, Result};

/// Nanoseconds in a second.
const NS: f64 = 1e9;

/// A stretch of a [`Process::Piecewise`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece {
    /// How long it lasts.
    pub lasts: Nanos,
    /// Mean arrivals per second during it; may be 0.
    pub rate_rps: f64,
}

/// How requests arrive.
#[derive(Clone, Debug, PartialEq)]
pub enum Process {
    /// Evenly spaced, the first at time 0.
    Constant {
        /// Arrivals per second.
        rate_rps: f64,
    },
    /// Independent exponential gaps.
    Poisson {
        /// Mean arrivals per second.
        rate_rps: f64,
    },
    /// Independent gamma gaps: burstier than Poisson for `cv` above 1, more even below.
    Gamma {
        /// Mean arrivals per second.
        rate_rps: f64,
        /// Coefficient of variation of the gaps (standard deviation / mean).
        cv: f64,
    },
    /// Poisson whose rate switches between two values after exponential holding times; starts on.
    OnOff {
        /// Mean arrivals per second while on.
        on_rps: f64,
        /// Mean arrivals per second while off; may be 0.
        off_rps: f64,
        /// Mean time on.
        mean_on: Nanos,
        /// Mean time off.
        mean_off: Nanos,
    },
    /// Poisson whose rate follows a list of stretches, over and over.
    Piecewise {
        /// The stretches, in order.
        pieces: Vec<Piece>,
    },
}

impl Process {
    /// Long-run mean arrivals per second.
    pub fn mean_rate_rps(&self) -> f64 {
        match self {
            Self::Constant { rate_rps }
            | Self::Poisson { rate_rps }
            | Self::Gamma { rate_rps, .. } => *rate_rps,
            Self::OnOff {
                on_rps,
                off_rps,
                mean_on,
                mean_off,
            } => {
                let (on, off) = (mean_on.0 as f64, mean_off.0 as f64);
                (on_rps * on + off_rps * off) / (on + off)
            }
            Self::Piecewise { pieces } => {
                let total: f64 = pieces.iter().map(|p| p.lasts.0 as f64).sum();
                pieces
                    .iter()
                    .map(|p| p.rate_rps * p.lasts.0 as f64)
                    .sum::<f64>()
                    / total
            }
        }
    }

    /// The same process sped up or slowed down to a mean of `rate_rps`; the lengths of stretches
    /// stay as they are.
    pub fn scaled_to(mut self, rate_rps: f64) -> Self {
        let factor = rate_rps / self.mean_rate_rps();
        match &mut self {
            Self::Constant { rate_rps }
            | Self::Poisson { rate_rps }
            | Self::Gamma { rate_rps, .. } => *rate_rps *= factor,
            Self::OnOff {
                on_rps, off_rps, ..
            } => {
                *on_rps *= factor;
                *off_rps *= factor;
            }
            Self::Piecewise { pieces } => {
                for piece in pieces {
                    piece.rate_rps *= factor;
                }
            }
        }
        self
    }

    /// Checks that the parameters describe a process that keeps producing arrivals.
    ///
    /// # Errors
    /// [`Error::Parameter`] naming the parameter at fault.
    pub fn validate(&self) -> Result<()> {
        match self {
            Self::Constant { rate_rps } | Self::Poisson { rate_rps } => {
                positive("arrival rate", *rate_rps)
            }
            Self::Gamma { rate_rps, cv } => {
                positive("arrival rate", *rate_rps)?;
                positive("coefficient of variation", *cv)
            }
            Self::OnOff {
                on_rps,
                off_rps,
                mean_on,
                mean_off,
            } => {
                positive("arrival rate while on", *on_rps)?;
                not_negative("arrival rate while off", *off_rps)?;
                positive("mean time on", mean_on.0 as f64)?;
                positive("mean time off", mean_off.0 as f64)
            }
            Self::Piecewise { pieces } => {
                for piece in pieces {
                    not_negative("arrival rate of a stretch", piece.rate_rps)?;
                    positive("length of a stretch", piece.lasts.0 as f64)?;
                }
                positive("arrival rate over all stretches", self.mean_rate_rps())
            }
        }
    }

    /// The arrival times, without end, in order.
    ///
    /// # Errors
    /// As [`Process::validate`].
    pub fn times(&self, seed: u64) -> Result<Times> {
        self.validate()?;
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let state = match self {
            Self::Constant { rate_rps } => State::Constant {
                count: 0,
                gap_ns: NS / rate_rps,
            },
            Self::Poisson { rate_rps } => State::Poisson {
                gap_ns: NS / rate_rps,
            },
            Self::Gamma { rate_rps, cv } => {
                let shape = 1.0 / (cv * cv);
                let gaps = Gamma::new(shape, NS / rate_rps / shape).map_err(|e| {
                    Error::parameter("gamma arrivals", "a usable shape and scale", e.to_string())
                })?;
                State::Gamma { gaps }
            }
            Self::OnOff {
                on_rps,
                off_rps,
                mean_on,
                mean_off,
            } => {
                let on = Holding {
                    mean_ns: mean_on.0 as f64,
                    rate_per_ns: on_rps / NS,
                };
                let off = Holding {
                    mean_ns: mean_off.0 as f64,
                    rate_per_ns: off_rps / NS,
                };
                State::Modulated(Modulated::new(Rates::OnOff {
                    holding: [on, off],
                    next: 0,
                }))
            }
            Self::Piecewise { pieces } => State::Modulated(Modulated::new(Rates::Cycle {
                pieces: pieces.clone(),
                next: 0,
            })),
        };
        Ok(Times {
            rng,
            now: Time::ZERO,
            state,
        })
    }
}

/// An endless iterator over arrival times; see [`Process::times`].
#[derive(Clone, Debug)]
pub struct Times {
    rng: ChaCha8Rng,
    now: Time,
    state: State,
}

impl Iterator for Times {
    type Item = Time;

    fn next(&mut self) -> Option<Time> {
        let rng = &mut self.rng;
        self.now = match &mut self.state {
            // Counted from the start, so that a rate whose gap is no whole number does not drift.
            State::Constant { count, gap_ns } => {
                let at = Time((*count as f64 * *gap_ns).round() as u64);
                *count += 1;
                at
            }
            State::Poisson { gap_ns } => {
                let unit: f64 = Exp1.sample(rng);
                self.now + Nanos((unit * *gap_ns).round() as u64)
            }
            State::Gamma { gaps } => self.now + Nanos(gaps.sample(rng).round() as u64),
            State::Modulated(modulated) => modulated.next(rng),
        };
        Some(self.now)
    }
}

#[derive(Clone, Debug)]
enum State {
    Constant { count: u64, gap_ns: f64 },
    Poisson { gap_ns: f64 },
    Gamma { gaps: Gamma<f64> },
    Modulated(Modulated),
}

/// A mean holding time and the rate during it.
#[derive(Clone, Copy, Debug)]
struct Holding {
    mean_ns: f64,
    rate_per_ns: f64,
}

#[derive(Clone, Debug)]
enum Rates {
    OnOff { holding: [Holding; 2], next: usize },
    Cycle { pieces: Vec<Piece>, next: usize },
}

impl Rates {
    /// Length in nanoseconds and rate per nanosecond of the next stretch.
    fn next(&mut self, rng: &mut ChaCha8Rng) -> (f64, f64) {
        match self {
            Self::OnOff { holding, next } => {
                let Holding {
                    mean_ns,
                    rate_per_ns,
                } = holding[*next];
                *next = 1 - *next;
                let unit: f64 = Exp1.sample(rng);
                (unit * mean_ns, rate_per_ns)
            }
            Self::Cycle { pieces, next } => {
                let piece = pieces[*next];
                *next = (*next + 1) % pieces.len();
                (piece.lasts.0 as f64, piece.rate_rps / NS)
            }
        }
    }
}

/// A Poisson process whose rate is constant within stretches.
#[derive(Clone, Debug)]
struct Modulated {
    rates: Rates,
    /// Start of what is left of the current stretch.
    from_ns: f64,
    /// What is left of it.
    left_ns: f64,
    rate_per_ns: f64,
}

impl Modulated {
    fn new(rates: Rates) -> Self {
        Self {
            rates,
            from_ns: 0.0,
            left_ns: 0.0,
            rate_per_ns: 0.0,
        }
    }

    fn next(&mut self, rng: &mut ChaCha8Rng) -> Time {
        let mut work: f64 = Exp1.sample(rng);
        loop {
            let here = self.left_ns * self.rate_per_ns;
            if work < here {
                let gap = work / self.rate_per_ns;
                self.from_ns += gap;
                self.left_ns -= gap;
                return Time(self.from_ns.round() as u64);
            }
            work -= here;
            self.from_ns += self.left_ns;
            (self.left_ns, self.rate_per_ns) = self.rates.next(rng);
        }
    }
}

fn positive(what: &str, value: f64) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(Error::parameter(
        what,
        "a finite number above 0",
        value.to_string(),
    ))
}

fn not_negative(what: &str, value: f64) -> Result<()> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(Error::parameter(
        what,
        "a finite number of 0 or more",
        value.to_string(),
    ))
}

/// The spelling of processes on the command line.
const SPELLINGS: &str = "constant:RATE, poisson:RATE, gamma:RATE:CV, \
     onoff:ON_RATE:OFF_RATE:ON_MS:OFF_MS or piecewise:MS@RATE,MS@RATE,...";

impl FromStr for Process {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::parameter("arrival process", SPELLINGS, format!("`{text}`"));
        let number = |t: &str| t.parse::<f64>().map_err(|_| bad());
        let (kind, rest) = text.split_once(':').ok_or_else(bad)?;
        if kind == "piecewise" {
            let mut pieces = Vec::new();
            for piece in rest.split(',') {
                let (ms, rate) = piece.split_once('@').ok_or_else(bad)?;
                let lasts = Nanos::from_ms_f64(number(ms)?);
                pieces.push(Piece {
                    lasts,
                    rate_rps: number(rate)?,
                });
            }
            let process = Self::Piecewise { pieces };
            return process.validate().map(|()| process);
        }
        let numbers = rest.split(':').map(number).collect::<Result<Vec<f64>>>()?;
        let process = match (kind, numbers.as_slice()) {
            ("constant", &[rate_rps]) => Self::Constant { rate_rps },
            ("poisson", &[rate_rps]) => Self::Poisson { rate_rps },
            ("gamma", &[rate_rps, cv]) => Self::Gamma { rate_rps, cv },
            ("onoff", &[on_rps, off_rps, on_ms, off_ms]) => Self::OnOff {
                on_rps,
                off_rps,
                mean_on: Nanos::from_ms_f64(on_ms),
                mean_off: Nanos::from_ms_f64(off_ms),
            },
            _ => return Err(bad()),
        };
        process.validate().map(|()| process)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant { rate_rps } => write!(f, "constant:{rate_rps}"),
            Self::Poisson { rate_rps } => write!(f, "poisson:{rate_rps}"),
            Self::Gamma { rate_rps, cv } => write!(f, "gamma:{rate_rps}:{cv}"),
            Self::OnOff {
                on_rps,
                off_rps,
                mean_on,
                mean_off,
            } => {
                write!(
                    f,
                    "onoff:{on_rps}:{off_rps}:{}:{}",
                    mean_on.as_ms(),
                    mean_off.as_ms()
                )
            }
            Self::Piecewise { pieces } => {
                for (i, piece) in pieces.iter().enumerate() {
                    let lead = if i == 0 { "piecewise:" } else { "," };
                    write!(f, "{lead}{}@{}", piece.lasts.as_ms(), piece.rate_rps)?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
