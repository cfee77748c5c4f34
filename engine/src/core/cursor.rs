//! Cursors: where members go behind a pass.
//!
//! Splits entries whose members part ways, and walks padded batches from block to block.

use lazybatch_graph::Repeat;
use lazybatch_sla::{Launch, RequestId, SubBatchId, Time};

use super::config::BlockSpec;
use super::event::Note;
use super::request::{Key, Stage};
use super::state::State;
use super::table::SubBatch;

impl State {
    /// Passes of a request through a block: exact for `Once` and `PerInputStep`, the upper bound
    /// for `UntilStop`.
    pub(crate) fn passes(&self, key: Key, block: u32) -> u32 {
        let request = &self.requests[key as usize].request;
        match self.config.models[request.model.index()].blocks[block as usize].repeat {
            Repeat::Once => 1,
            Repeat::PerInputStep { stride } => request.input_len.div_ceil(stride),
            Repeat::UntilStop { max } => request.max_steps.unwrap_or(u32::MAX).min(max),
        }
    }

    /// The first block at or behind `from` that the request passes at all.
    pub(super) fn first_block(&self, key: Key, from: u32) -> Option<u32> {
        let model = self.requests[key as usize].request.model;
        let num = self.config.models[model.index()].blocks.len() as u32;
        (from..num).find(|&b| self.passes(key, b) > 0)
    }

    /// Moves an entry's members behind the pass that was just launched.
    pub(super) fn end_pass(&mut self, i: usize, repeat: Repeat, finishing: &mut Vec<Key>) {
        let entry = self.table.entry(i);
        entry.segment = 0;
        let block = entry.block;
        if let Some(padded) = &mut entry.padded {
            padded.step += 1;
            match repeat {
                Repeat::UntilStop { .. } => padded.undecided = true,
                Repeat::Once | Repeat::PerInputStep { .. } => {
                    let step = padded.step;
                    let more = (0..self.table.at(i).members.len())
                        .any(|m| self.passes(self.table.at(i).members[m], block) > step);
                    if !more {
                        self.enter_padded(i, block + 1, finishing);
                    }
                }
            }
            return;
        }
        let mut all_stay = true;
        for m in 0..self.table.at(i).members.len() {
            let key = self.table.at(i).members[m];
            let step = &mut self.requests[key as usize].step;
            *step += 1;
            let step = *step;
            all_stay &= step < self.passes(key, block);
        }
        if !all_stay {
            let target = |key: Key| {
                if self.requests[key as usize].step < self.passes(key, block) {
                    Some(block)
                } else {
                    self.first_block(key, block + 1)
                }
            };
            let targets: Vec<_> = self
                .table
                .at(i)
                .members
                .iter()
                .map(|&k| target(k))
                .collect();
            self.route(i, &targets, finishing);
        }
    }

    /// Sends an entry's members to the blocks named in `targets` (`None` ends them). The least
    /// progressed keep the entry; each group ahead becomes an entry of its own just below it, the
    /// less progressed above.
    pub(super) fn route(&mut self, i: usize, targets: &[Option<u32>], finishing: &mut Vec<Key>) {
        // `None`, the end, sorts behind every block.
        let rank = |b: Option<u32>| b.map_or(u64::MAX, u64::from);
        let first = targets.iter().map(|&b| rank(b)).min().expect("members");
        if targets.iter().all(|&b| rank(b) == first) {
            match targets[0] {
                Some(block) => self.enter(i, block),
                None => {
                    let gone = self.pop(i);
                    self.end(&gone.members, finishing);
                }
            }
            return;
        }
        let mut ahead: Vec<(u64, Vec<Key>)> = Vec::new();
        let mut stay = Vec::new();
        for (&key, &target) in self.table.at(i).members.iter().zip(targets) {
            let r = rank(target);
            if r == first {
                stay.push(key);
            } else {
                match ahead.binary_search_by_key(&r, |a| a.0) {
                    Ok(at) => ahead[at].1.push(key),
                    Err(at) => ahead.insert(at, (r, vec![key])),
                }
            }
        }
        let from = self.table.at(i).id;
        self.set_members(i, stay);
        self.enter(i, first as u32);
        for (r, keys) in ahead.into_iter().rev() {
            if r == u64::MAX {
                self.end(&keys, finishing);
            } else {
                let i = self
                    .table
                    .position(from)
                    .expect("it keeps the least progressed");
                self.split_ahead(i, from, r as u32, keys);
            }
        }
    }

    fn end(&mut self, keys: &[Key], finishing: &mut Vec<Key>) {
        for &key in keys {
            self.requests[key as usize].stage = Stage::Finishing;
        }
        finishing.extend_from_slice(keys);
    }

    /// Inserts `keys` as a new entry at the head of `block`, just below the entry at `i`.
    fn split_ahead(&mut self, i: usize, from: SubBatchId, block: u32, keys: Vec<Key>) {
        let id = self.table.fresh_id();
        if self.config.notes {
            let members = self.ids(&keys);
            self.note(|| Note::Split {
                from,
                ahead: id,
                members,
            });
        }
        let source = self.table.at(i);
        let mut entry = SubBatch {
            id,
            members: Vec::new(),
            merged_members: 0,
            ..source.clone()
        };
        entry.padded = None;
        self.table.insert(i, entry);
        for &key in &keys {
            self.requests[key as usize].stage = Stage::InFlight(id);
        }
        self.set_members(i, keys);
        self.enter(i, block);
    }

    fn set_members(&mut self, i: usize, keys: Vec<Key>) {
        let samples = keys
            .iter()
            .map(|&k| self.requests[k as usize].request.samples)
            .sum();
        let entry = self.table.entry(i);
        entry.members = keys;
        entry.samples = samples;
    }

    /// Puts the cursor of an entry at the head of `block`; steps start again if it is another one.
    fn enter(&mut self, i: usize, block: u32) {
        let entry = self.table.entry(i);
        entry.segment = 0;
        if entry.block != block {
            entry.block = block;
            for &key in &entry.members {
                self.requests[key as usize].step = 0;
            }
        }
    }

    /// Puts a padded batch at the head of the first block at or behind `from` that any member
    /// passes, or ends it.
    pub(super) fn enter_padded(&mut self, i: usize, from: u32, finishing: &mut Vec<Key>) {
        let members = self.table.at(i).members.clone();
        let block = members
            .iter()
            .filter_map(|&k| self.first_block(k, from))
            .min();
        for &key in &members {
            self.requests[key as usize].stopped = false;
        }
        match block {
            Some(block) => {
                let entry = self.table.entry(i);
                entry.block = block;
                entry.segment = 0;
                let padded = entry.padded.as_mut().expect("a padded entry");
                padded.step = 0;
                padded.undecided = false;
            }
            None => {
                self.end(&members, finishing);
                self.pop(i);
            }
        }
    }

    /// Members of a completed launch whose `UntilStop` loop ended.
    pub(super) fn stop(&mut self, now: Time, launch: &Launch, stopped: &[RequestId]) {
        let mut leaving: Vec<Key> = Vec::new();
        for id in stopped {
            let Some(&key) = self.by_id.get(id) else {
                continue;
            };
            let padded = launch.padded_len.is_some();
            self.note_output_len(key, launch);
            match self.requests[key as usize].stage {
                Stage::InFlight(_) if padded => self.requests[key as usize].stopped = true,
                Stage::InFlight(entry) => {
                    let i = self.table.position(entry).expect("its entry exists");
                    self.discard(key, Some(i), launch);
                    if self.table.at(i).block == launch.block {
                        leaving.push(key);
                    }
                }
                Stage::Finishing if !padded => {
                    self.discard(key, None, launch);
                    // The pass at the bound is in flight, and not needed.
                    let late = !self.is_complete(self.requests[key as usize].after);
                    if late && self.first_block(key, launch.block + 1).is_none() {
                        self.complete(now, key);
                    }
                }
                _ => {}
            }
        }
        while let Some(&first) = leaving.first() {
            let Stage::InFlight(entry) = self.requests[first as usize].stage else {
                unreachable!("leaving requests are in flight")
            };
            let i = self.table.position(entry).expect("its entry exists");
            let (block, segment) = (self.table.at(i).block, self.table.at(i).segment);
            let target = |&key: &Key| {
                if leaving.contains(&key) {
                    self.first_block(key, block + 1)
                } else {
                    Some(block)
                }
            };
            let targets: Vec<_> = self.table.at(i).members.iter().map(target).collect();
            let here = self.table.at(i).members.clone();
            leaving.retain(|k| !here.contains(k));
            let mut finishing = Vec::new();
            self.route(i, &targets, &mut finishing);
            // Those who stay keep their place within the pass.
            if let Some(j) = self.table.position(entry)
                && self.table.at(j).block == block
            {
                self.table.entry(j).segment = segment;
            }
            for key in finishing {
                self.complete(now, key);
            }
        }
    }

    /// Remembers how many passes the loop took that `launch` ended for a request, if it is the last.
    fn note_output_len(&mut self, key: Key, launch: &Launch) {
        if self.last_loop(key).map(|l| l.0) != Some(launch.block) {
            return;
        }
        let state = &mut self.requests[key as usize];
        let mut members = launch.members.iter();
        if state.output_len.is_none()
            && let Some(member) = members.find(|m| m.request == state.request.id)
        {
            state.output_len = Some(member.step + 1);
        }
    }

    /// Of a request that ends and that nobody stopped, its last loop took as many passes as it may.
    pub(super) fn note_bound(&mut self, key: Key) {
        let state = &self.requests[key as usize];
        if state.output_len.is_some() || state.doomed {
            return;
        }
        if let Some((block, max)) = self.last_loop(key) {
            let passes = self.passes(key, block);
            let state = &mut self.requests[key as usize];
            state.output_len = Some(passes);
            state.is_cut = passes < max;
        }
    }

    /// The last `UntilStop` block of a request's model, and its greatest number of passes.
    fn last_loop(&self, key: Key) -> Option<(u32, u32)> {
        let model = self.requests[key as usize].request.model;
        let blocks = self.config.models[model.index()].blocks.iter();
        let stops = |(i, b): (usize, &BlockSpec)| match b.repeat {
            Repeat::UntilStop { max } => Some((i as u32, max)),
            _ => None,
        };
        blocks.enumerate().filter_map(stops).next_back()
    }

    /// Counts the passes that a request was launched for behind the one that `launch` ended its
    /// loop with; one that has begun counts. `entry` is where it stands, if it has not ended.
    fn discard(&mut self, key: Key, entry: Option<usize>, launch: &Launch) {
        let id = self.requests[key as usize].request.id;
        let member = launch.members.iter().find(|m| m.request == id);
        let needed = member.expect("who stops is a member").step + 1;
        let begun = match entry.map(|i| self.table.at(i)) {
            Some(e) if e.block == launch.block => {
                self.requests[key as usize].step + u32::from(e.segment > 0)
            }
            // It has reached the bound of the loop meanwhile.
            _ => self.passes(key, launch.block),
        };
        let discarded = u64::from(begun.saturating_sub(needed));
        self.tally(launch.model, |c| c.discarded += discarded);
    }

    /// Decides whether a padded batch goes on after a pass of an `UntilStop` block.
    pub(super) fn settle_padded(&mut self, now: Time, id: SubBatchId) {
        let Some(i) = self.table.position(id) else {
            return;
        };
        let entry = self.table.at(i);
        let Some(padded) = entry.padded.filter(|p| p.undecided) else {
            return;
        };
        // Earlier segments of the pass may complete one by one.
        if !self.is_complete(entry.after) {
            return;
        }
        let block = entry.block;
        let more = entry
            .members
            .iter()
            .any(|&k| !self.requests[k as usize].stopped && padded.step < self.passes(k, block));
        let mut finishing = Vec::new();
        if more {
            self.table
                .entry(i)
                .padded
                .as_mut()
                .expect("a padded entry")
                .undecided = false;
        } else {
            self.enter_padded(i, block + 1, &mut finishing);
        }
        for key in finishing {
            self.complete(now, key);
        }
    }
}
