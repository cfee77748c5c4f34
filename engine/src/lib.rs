//! The engine: a pure scheduler core, its policies, and the drivers around them.
//!
//! - [`core`]: the state machine. Events in, actions out; the batch table and the checker.
//! - [`policy`]: who runs next. One file a policy.
//! - [`driver`]: virtual time, and a thread that drives a real device.
//! - [`embed`]: the public face for serving front ends: [`Engine`].
//! - [`measure`]: latency tables of a model on a device.
//! - [`journal`], [`timeline`]: what happened, to replay or to look at.
//! - [`watch`]: what happens, for those who look at a running engine.
//! - [`threads`]: when a thread gets a processor that others want too.
//!
//! Two requests for a model of three nodes, one after the other. The second arrives while the first
//! is at its second node; `lazy` lets it catch up:
//!
//! ```
//! use lazybatch_engine::core::{Core, CoreConfig, ModelSpec};
//! use lazybatch_engine::driver::virtual_time::{Script, SimRequest, run, untimed};
//! use lazybatch_engine::policy;
//! use lazybatch_engine::timeline::Timeline;
//! use lazybatch_kernels::{Noise, SimDevice};
//! use lazybatch_sla::{ModelId, Nanos, Profile, Time};
//!
//! let profile = Profile::parse("-", r#"{"format": "lazybatch-profile/1", "device": "toy",
//!   "models": [{"name": "chain", "blocks": [{"name": "net", "repeat": "once", "nodes": [
//!     {"name": "first", "latency_us": [[1, 10]]}, {"name": "second", "latency_us": [[1, 10]]},
//!     {"name": "third", "latency_us": [[1, 10]]}]}]}]}"#)?;
//! let spec = ModelSpec::from_profile(&profile, &profile.models[0], 1, 1);
//! let mut device =
//!     SimDevice::new("toy", 1, vec![spec.table.clone()], Nanos::ZERO, Noise::default());
//! let config = CoreConfig { notes: true, ..CoreConfig::new(vec![spec]) };
//! let mut timeline = Timeline::new(&config);
//! let mut core = Core::new(config, policy::build("lazy")?);
//! let sla = Some(Nanos::from_ms(1));
//! let arrivals = [
//!     SimRequest::new(0, ModelId(0), Time(0), sla, 0, 0),
//!     SimRequest::new(1, ModelId(0), Time(5_000), sla, 0, 0),
//! ];
//! run(&mut core, &mut device, &arrivals, &Script::default(), &mut timeline, &mut untimed);
//! assert_eq!(timeline.into_text(), "       0.000 arrive r0 chain input 0
//!        0.000 admit b0 [r0]
//!        0.000 run b0 net.0 [r0@0]
//!        5.000 arrive r1 chain input 0
//!       10.000 admit b1 [r1]
//!       10.000 preempt b0 by b1
//!       10.000 run b1 net.0 [r1@0], parked b0 [r0]
//!       20.000 merge b1 into b0
//!       20.000 run b0 net.1 [r0@0 r1@0]
//!       30.000 run b0 net.2 [r0@0 r1@0]
//!       40.000 finish r0 met
//!       40.000 finish r1 met
//! ");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod core;
pub mod driver;
pub mod embed;
pub mod explain;
pub mod journal;
pub mod measure;
pub mod policy;
pub mod threads;
pub mod timeline;
pub mod watch;

pub use driver::figures::{Load, Planning, Stats};
pub use driver::threaded::Clock;
pub use embed::{
    Answer, AtSize, BuildError, Builder, Engine, Figures, Handle, Held, Launches, ModelHandle,
    ModelOptions, ModelStats, Options, RequestError, SequenceOptions, Sizes, Step, StepStream,
};
pub use explain::Explanation;
pub use watch::{Look, Monitor, Watch};
