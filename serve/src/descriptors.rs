//! How many descriptors this process may have open: connections, shared memory regions and files.
//!
//! Most systems let a process have 1,024 unless it asks for more, and a server takes more connections
//! than that.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::shm::MAX_REGIONS;

/// Descriptors of its own: ports, models that are loaded, files of traces and of the machine's figures.
const OWN: u64 = 256;

/// Asks the system for as many as it lets this process have; how many that is, if there is a bound.
pub fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    if current == maximum || setrlimit(Resource::Nofile, all).is_ok() {
        return maximum;
    }
    current
}

/// How many a server with so many ports needs at most, each of which takes `max_connections`.
pub fn needed(ports: usize, max_connections: usize) -> u64 {
    let connections = (ports as u64).saturating_mul(max_connections as u64);
    connections.saturating_add(MAX_REGIONS as u64 + OWN)
}

/// Asks for as many as there are, and warns where they are fewer than a server with so many ports needs.
pub fn provide(ports: usize, max_connections: usize) {
    let needed = needed(ports, max_connections);
    if let Some(most) = raise().filter(|&most| most < needed) {
        tracing::warn!(
            "this process may have {most} files and connections open, and max-connections \
             ({max_connections} of each of {ports} ports) with {MAX_REGIONS} shared memory regions may \
             take {needed}: beyond {most} no connection is accepted until another one ends"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_asked_for_as_there_may_be() {
        let before = getrlimit(Resource::Nofile);
        let few = Rlimit {
            current: before
                .maximum
                .map_or(Some(4096), |most| Some(most.min(4096))),
            ..before
        };
        setrlimit(Resource::Nofile, few).unwrap();
        let most = raise();
        assert_eq!(getrlimit(Resource::Nofile).current, most);
        assert_eq!(most, before.maximum);
    }

    #[test]
    fn all_connections_and_regions_are_counted() {
        assert_eq!(needed(3, 4096), 3 * 4096 + 1024 + 256);
        assert_eq!(needed(3, usize::MAX), u64::MAX);
    }
}
