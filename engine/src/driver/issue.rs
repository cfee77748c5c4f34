//! Issues launches to a device.

use lazybatch_kernels::Device;
use lazybatch_sla::{Launch, RequestId, Time};

use super::failures::Doomed;
use super::threaded::Plans;

/// Requests that the device has not where a launch goes on with them: those that it did not take, and
/// those of a launch ahead that it refused.
type Absent<'a> = [&'a Doomed; 2];

fn why_absent<'a>(absent: Absent<'a>, id: RequestId) -> Option<&'a String> {
    absent.into_iter().find_map(|some| some.get(&id))
}

/// Issues a launch in the smallest bucket that holds it, without the requests that are absent.
///
/// # Errors
/// Why none of it runs.
pub(super) fn issue(
    device: &mut dyn Device,
    plans: &[Plans],
    absent: Absent<'_>,
    now: Time,
    launch: &Launch,
) -> Result<(), String> {
    if absent.iter().any(|some| !some.is_empty()) {
        let mut ids = launch.members.iter().map(|m| m.request);
        if let Some(cause) = ids.find_map(|id| why_absent(absent, id)) {
            let others = without(absent, launch);
            return match others.members.is_empty() {
                true => Err(cause.clone()),
                false => enqueue(device, plans, now, &others),
            };
        }
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

/// The launch without those that are absent.
fn without(absent: Absent<'_>, launch: &Launch) -> Launch {
    let mut launch = launch.clone();
    let is_there = |id| why_absent(absent, id).is_none();
    launch.members.retain(|m| is_there(m.request));
    launch.merged_members = launch.merged_members.min(launch.members.len() as u32);
    launch
}
