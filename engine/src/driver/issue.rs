//! Issues launches to a device.

use lazybatch_kernels::Device;
use lazybatch_sla::{Launch, RequestId, Time};
use rustc_hash::FxHashMap;

use super::threaded::Plans;

/// Issues a launch in the smallest bucket that holds it, without the requests that the device did not
/// take.
///
/// # Errors
/// Why none of it runs.
pub(super) fn issue(
    device: &mut dyn Device,
    plans: &[Plans],
    unstaged: &FxHashMap<RequestId, String>,
    now: Time,
    launch: &Launch,
) -> Result<(), String> {
    if !unstaged.is_empty()
        && let Some(cause) = launch.members.iter().find_map(|m| unstaged.get(&m.request))
    {
        let others = without_unstaged(launch, unstaged);
        return match others.members.is_empty() {
            true => Err(cause.clone()),
            false => enqueue(device, plans, now, &others),
        };
    }
    enqueue(device, plans, now, launch)
}

fn enqueue(
    device: &mut dyn Device,
    plans: &[Plans],
    now: Time,
    launch: &Launch,
) -> Result<(), String> {
    let size = u64::from(launch.num_samples()).max(launch.num_rows());
    let buckets = &plans[launch.model.index()][launch.block as usize][launch.segment as usize];
    let (_, plan) = buckets
        .iter()
        .find(|(bucket, _)| u64::from(*bucket) >= size)
        .or(buckets.last())
        .ok_or_else(|| "the segment has no plan".to_string())?;
    device
        .enqueue(now, *plan, launch)
        .map_err(|e| e.to_string())
}

/// The launch without those that the device did not take.
fn without_unstaged(launch: &Launch, unstaged: &FxHashMap<RequestId, String>) -> Launch {
    let mut launch = launch.clone();
    launch
        .members
        .retain(|m| !unstaged.contains_key(&m.request));
    launch.merged_members = launch.merged_members.min(launch.members.len() as u32);
    launch
}
