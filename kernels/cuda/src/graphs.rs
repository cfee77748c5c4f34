//! Launches recorded as CUDA graphs.
//!
//! The key of a graph is the work itself: every kernel with its threads and all its arguments. A
//! launch whose record equals that of an earlier one is run by its graph, which is one call of the
//! driver, and does exactly what its kernels would do one by one. So a graph never needs to be told
//! that something changed; what changes from launch to launch has to be kept out of the arguments
//! for it to be found again:
//!
//! - rows, positions, pages and members are in tables, which are copied to one place ahead of every
//!   launch;
//! - all launches work in one place of the arena ([`crate::memory`]);
//! - sizes are rounded up to few ([`bucket`]), where rows of nobody fill what is missing;
//! - copies that a merge needs come ahead of the graph.
//!
//! What is left are the sizes. Those that are likely are captured when their segment is prepared (`device/warm.rs`).
//! Any other record is captured when it comes again (`eager_first` times it is issued one by one), so
//! that what comes once costs nothing. At most as many graphs are kept as options say, and as many records
//! without one; where there is no room, a few of those that were used longest ago go: to give back
//! half of a thousand graphs takes the driver some 10 ms, for which all that is served would wait.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasherDefault;

use xxhash_rust::xxh3::Xxh3;

use crate::error::CudaError;
use crate::record::Record;
use crate::stream::{Graph, Stream};

/// Graphs that are forgotten at once, at most, and records without one.
const FORGOTTEN: [usize; 2] = [4, 64];

/// How launches were run so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphCounts {
    /// By a graph.
    pub replayed: u64,
    /// One by one.
    pub eager: u64,
    /// Of these, records that had not come before, or longer ago than is remembered.
    pub new: u64,
    /// Graphs that were made.
    pub captured: u64,
}

/// Graphs by the work they do.
#[derive(Debug)]
pub struct Graphs {
    is_on: bool,
    eager_first: u32,
    /// Most graphs, and most records without one.
    most: usize,
    /// Launches of which it is not known whether they are over, at most.
    depth: u64,
    known: HashMap<Record, Known, BuildHasherDefault<Xxh3>>,
    /// Of those known, with a graph.
    num_graphs: usize,
    /// Those captured ahead since there was last all of the room for them.
    ahead: usize,
    /// Launches and captures so far: no two records were used at the same time.
    now: u64,
    counts: GraphCounts,
    /// Why a graph was not made, of the first.
    failure: Option<String>,
}

#[derive(Debug, Default)]
struct Known {
    times: u32,
    last: u64,
    graph: Option<Graph>,
    /// The driver did not capture it.
    is_refused: bool,
}

impl Graphs {
    /// None so far; at most `most` are kept, and `depth` launches are in flight.
    pub fn new(is_on: bool, eager_first: u32, most: usize, depth: usize) -> Self {
        Self {
            is_on,
            eager_first,
            most: most.max(1),
            depth: depth as u64,
            known: HashMap::default(),
            num_graphs: 0,
            ahead: 0,
            now: 0,
            counts: GraphCounts::default(),
            failure: None,
        }
    }

    /// How launches were run so far.
    pub fn counts(&self) -> GraphCounts {
        self.counts
    }

    /// Why the first graph that was asked for and not made was not.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Notes why a graph was not made; the first is kept.
    pub fn note_failure(&mut self, why: &impl fmt::Display) {
        self.failure.get_or_insert_with(|| why.to_string());
    }

    /// Runs a record: by its graph, or by `play`, which puts its work into the stream.
    ///
    /// # Errors
    /// Those of `play`, or what the driver answers.
    pub fn run<E: From<CudaError> + fmt::Display>(
        &mut self,
        stream: &Stream,
        record: Record,
        mut play: impl FnMut(&Record) -> Result<(), E>,
    ) -> Result<(), E> {
        self.now += 1;
        if !self.is_on || !record.is_capturable() {
            self.counts.eager += 1;
            return play(&record);
        }
        // A record is long: it is looked up once where there is a graph.
        let (mut times, mut is_refused) = (1, false);
        let known = self.known.get_mut(&record);
        let is_new = known.is_none();
        if let Some(known) = known {
            known.last = self.now;
            known.times = known.times.saturating_add(1);
            if let Some(graph) = &known.graph {
                self.counts.replayed += 1;
                return Ok(stream.launch_graph(graph)?);
            }
            (times, is_refused) = (known.times, known.is_refused);
        }
        let is_wanted = !is_refused && times > self.eager_first;
        if is_new {
            self.counts.new += 1;
            if self.known.len() - self.num_graphs >= self.most {
                self.forget(stream, false)?;
            }
            let known = Known {
                times,
                last: self.now,
                ..Known::default()
            };
            if !is_wanted {
                self.counts.eager += 1;
                let result = play(&record);
                self.known.insert(record, known);
                return result;
            }
            self.known.insert(record.clone(), known);
        }
        if is_wanted {
            self.capture(stream, &record, &mut play)?;
            if let Some(graph) = &self.known[&record].graph {
                self.counts.replayed += 1;
                return Ok(stream.launch_graph(graph)?);
            }
        }
        self.counts.eager += 1;
        play(&record)
    }

    /// Captures a record that is known, if the driver does.
    fn capture<E: From<CudaError> + fmt::Display>(
        &mut self,
        stream: &Stream,
        record: &Record,
        play: &mut impl FnMut(&Record) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.num_graphs >= self.most {
            self.forget(stream, true)?;
        }
        let captured = stream.capture(|| play(record));
        let known = self.known.get_mut(record).expect("it is known");
        match captured {
            Ok(graph) => {
                known.graph = Some(graph);
                self.counts.captured += 1;
                self.num_graphs += 1;
            }
            Err(error) => {
                known.is_refused = true;
                self.note_failure(&error);
            }
        }
        Ok(())
    }

    /// Whether records that have not come yet may still be captured: they get half of the room, of
    /// what is left.
    pub fn has_room_ahead(&self) -> bool {
        self.is_on && self.ahead < self.most / 2 && self.num_graphs < self.most
    }

    /// A model has gone: those that come have all of the room for records that have not come yet.
    pub fn give_room_ahead(&mut self) {
        self.ahead = 0;
    }

    /// Captures a record that has not come yet and puts its graph onto the device; what the driver does
    /// not capture is tried again when it comes.
    ///
    /// # Errors
    /// Those of `play`, or what the driver answers.
    pub fn capture_ahead<E: From<CudaError>>(
        &mut self,
        stream: &Stream,
        record: Record,
        mut play: impl FnMut(&Record) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_known = self.known.contains_key(&record);
        if is_known || !self.has_room_ahead() || !record.is_capturable() {
            return Ok(());
        }
        let graph = stream.capture(|| play(&record))?;
        stream.upload_graph(&graph)?;
        self.counts.captured += 1;
        self.ahead += 1;
        self.num_graphs += 1;
        self.now += 1;
        let known = Known {
            last: self.now,
            graph: Some(graph),
            ..Known::default()
        };
        self.known.insert(record, known);
        Ok(())
    }

    /// Forgets a few of those that were used longest ago, of those with a graph or of those without.
    /// Waits for launches if one of them may use what goes.
    fn forget(&mut self, stream: &Stream, graphs: bool) -> Result<(), CudaError> {
        let is_one = |known: &Known| known.graph.is_some() == graphs;
        let mut ages: Vec<u64> = self
            .known
            .values()
            .filter(|k| is_one(k))
            .map(|k| k.last)
            .collect();
        let num = FORGOTTEN[usize::from(!graphs)].min(ages.len());
        if num == 0 {
            return Ok(());
        }
        let (_, youngest, _) = ages.select_nth_unstable(num - 1);
        let youngest = *youngest;
        if graphs {
            if youngest + self.depth >= self.now {
                stream.synchronize()?;
            }
            self.num_graphs -= num;
        }
        self.known
            .retain(|_, known| !is_one(known) || known.last > youngest);
        Ok(())
    }
}

/// Sizes that launches are rounded up to: all up to 8, then four between powers of two. What is
/// added is less than a quarter, and where rows are few a product with more takes no longer.
pub fn bucket(size: usize) -> usize {
    size.next_multiple_of((size.next_power_of_two() / 8).max(1))
}

/// Sizes that only bound a grid are rounded up to: powers of two, from 16 on.
pub fn grid_bound(size: usize) -> usize {
    size.next_power_of_two().max(16)
}

/// Numbers of members that launches are rounded up to, fewer than of rows: 1 to 4, then even ones of
/// [`bucket`].
pub fn members_bucket(num: usize) -> usize {
    bucket(if num > 4 {
        num.next_multiple_of(2)
    } else {
        num
    })
}

/// Sizes of a launch with what is added to reach few of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Padded {
    /// Members.
    pub members: usize,
    /// Rows.
    pub rows: usize,
    /// Samples.
    pub samples: usize,
}

impl Padded {
    /// For so many members, rows and samples; each member that is added has a row (where there are
    /// rows at all) and a sample at least.
    pub fn of(members: usize, rows: usize, samples: usize) -> Self {
        let is_even = bucket(rows) == rows && bucket(samples) == samples;
        let all = match members_bucket(members) {
            same if same == members && !is_even => members_bucket(members + 1),
            more => more,
        };
        let added = all - members;
        let with_rows = if rows > 0 { rows + added } else { 0 };
        Self {
            members: all,
            rows: bucket(with_rows),
            samples: bucket(samples + added),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_into_few_buckets_that_add_little() {
        let given = [0, 1, 3, 5, 8, 9, 15, 16, 17, 31, 33, 100, 1000];
        let want = [0, 1, 3, 5, 8, 10, 16, 16, 20, 32, 40, 112, 1024];
        assert_eq!(given.map(bucket), want);
        for size in 1..5000 {
            let up = bucket(size);
            assert!(up >= size && (up - size) * 4 <= size && bucket(up) == up);
        }
    }

    #[test]
    fn room_for_what_is_captured_ahead_comes_back() {
        let mut graphs = Graphs::new(true, 1, 100, 4);
        assert!(graphs.has_room_ahead());
        graphs.ahead = 50;
        assert!(!graphs.has_room_ahead());
        graphs.give_room_ahead();
        assert!(graphs.has_room_ahead());
        assert!(!Graphs::new(false, 1, 100, 4).has_room_ahead());
    }

    #[test]
    fn members_that_are_added_have_rows_and_samples() {
        for (members, rows, samples) in [(1, 0, 1), (5, 0, 5), (4, 17, 4), (9, 300, 9), (3, 3, 9)] {
            let padded = Padded::of(members, rows, samples);
            let added = padded.members - members;
            assert!(padded.samples >= samples + added, "{padded:?}");
            assert_eq!(rows == 0, padded.rows == 0);
            assert!(rows == 0 || padded.rows >= rows + added, "{padded:?}");
            assert!(added > 0 || (padded.rows, padded.samples) == (rows, samples));
        }
        let even = Padded {
            members: 8,
            rows: 16,
            samples: 8,
        };
        assert_eq!(Padded::of(8, 16, 8), even);
        assert_eq!(Padded::of(8, 15, 8).members, 10);
        let rounded = [1, 3, 4, 5, 6, 7, 8, 9].map(members_bucket);
        assert_eq!(rounded, [1, 3, 4, 6, 6, 8, 8, 10]);
    }
}
