//! Ensembles follow the models that they are made of where clients load those.
//!
//! In mode `poll` a change of a step's files is one of the ensemble's, and nothing is to be done here.

use std::collections::BTreeSet;

use super::{Entry, Repository};

impl Repository {
    /// Loads the ensembles that are served anew that have steps among `new`, which were: they hold what
    /// those were before. One that cannot be is served on as it is.
    pub(super) fn follow(&self, new: &BTreeSet<String>) {
        let models = self.read();
        let of_new = |e: &Entry| e.is_ready() && !e.steps.is_disjoint(new);
        let others = models
            .iter()
            .filter(|(n, e)| !new.contains(*n) && of_new(e));
        let mut others: Vec<_> = others
            .map(|(n, e)| (e.steps.len(), n.clone(), e.last.clone()))
            .collect();
        drop(models);
        // Each behind its steps, which have fewer.
        others.sort_by_key(|(num_steps, ..)| *num_steps);
        for (_, name, brought) in others {
            if let Err(error) = self.load_one(&name, brought) {
                self.note(&name, &error);
            }
        }
    }
}
