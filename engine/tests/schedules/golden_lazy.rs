//! Timelines of the stack policies and the padded ones, worked out by hand. The language of the
//! fixtures is that of `common/golden.rs`.

use crate::common::golden::{plain, timeline};

#[track_caller]
fn golden(policy: &str, profile: &str, arrivals: &str, expected: &str) {
    assert_eq!(timeline(policy, profile, arrivals, true), plain(expected));
}

#[test]
fn newcomers_preempt_catch_up_and_merge() {
    golden(
        "lazy",
        "net once 10+2 10+2 10+2",
        "at 0 sla 1000
         at 5 sla 1000
         at 25 sla 1000",
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]                        // 10 at batch 1: to 10
          5.000 arrive r1 m input 0                        // a node is not interrupted
         10.000 admit b1 [r1]                              // 20 + 30 left: slack of r0 1000-10-50
         10.000 preempt b0 by b1
         10.000 run b1 net.0 [r1@0], parked b0 [r0]        // alone: to 20
         20.000 merge b1 into b0                           // both at net.1
         20.000 run b0 net.1 [r0@0 r1@0]                   // 12 at batch 2: to 32
         25.000 arrive r2 m input 0
         32.000 admit b2 [r2]                              // 10 + 10 + 30 left: passes
         32.000 preempt b0 by b2
         32.000 run b2 net.0 [r2@0], parked b0 [r0, r1]    // to 42
         42.000 run b2 net.1 [r2@0], parked b0 [r0, r1]    // b0 stands at net.2: to 52
         52.000 merge b2 into b0
         52.000 run b0 net.2 [r0@0 r1@0 r2@0]              // 14 at batch 3: to 66
         66.000 finish r0 met
         66.000 finish r1 met
         66.000 finish r2 met",
    );
}

// Three nodes of 10. r0 and r1 start together with the same target S, r2 comes at 5.
// At 10: r0 and r1 have 20 left each, r2 30: 70; slack of r0 and r1 is S - 10 - 70 = S - 80.
// At 20: 10 + 10 + 30 = 50; slack is S - 20 - 50 = S - 70.
const REFUSAL: &str = "net once 10 10 10";

#[test]
fn refused_by_the_serialised_test_until_there_is_slack() {
    // S = 75: -5 at 10, +5 at 20. r3 has no chance (deadline 50), but an empty table asks nobody.
    golden(
        "lazy",
        REFUSAL,
        "at 0 sla 75
         at 0 sla 75
         at 5 sla 1000
         at 45 sla 5",
        " 0.000 arrive r0 m input 0
          0.000 arrive r1 m input 0
          0.000 admit b0 [r0, r1]
          0.000 run b0 net.0 [r0@0 r1@0]
          5.000 arrive r2 m input 0
         10.000 run b0 net.1 [r0@0 r1@0]                   // 75 - 80 < 0: refused
         20.000 admit b1 [r2]                              // 75 - 70 >= 0
         20.000 preempt b0 by b1
         20.000 run b1 net.0 [r2@0], parked b0 [r0, r1]
         30.000 run b1 net.1 [r2@0], parked b0 [r0, r1]
         40.000 merge b1 into b0
         40.000 run b0 net.2 [r0@0 r1@0 r2@0]
         45.000 arrive r3 m input 0
         50.000 finish r0 met
         50.000 finish r1 met
         50.000 finish r2 met
         50.000 admit b2 [r3]
         50.000 run b2 net.0 [r3@0]
         60.000 run b2 net.1 [r3@0]
         70.000 run b2 net.2 [r3@0]
         80.000 finish r3 violated",
    );
}

#[test]
fn slack_of_exactly_zero_admits() {
    // S = 80: 0 at 10.
    golden(
        "lazy",
        REFUSAL,
        "at 0 sla 80
         at 0 sla 80
         at 5 sla 1000",
        " 0.000 arrive r0 m input 0
          0.000 arrive r1 m input 0
          0.000 admit b0 [r0, r1]
          0.000 run b0 net.0 [r0@0 r1@0]
          5.000 arrive r2 m input 0
         10.000 admit b1 [r2]
         10.000 preempt b0 by b1
         10.000 run b1 net.0 [r2@0], parked b0 [r0, r1]
         20.000 merge b1 into b0
         20.000 run b0 net.1 [r0@0 r1@0 r2@0]
         30.000 run b0 net.2 [r0@0 r1@0 r2@0]
         40.000 finish r0 met
         40.000 finish r1 met
         40.000 finish r2 met",
    );
}

#[test]
fn refused_until_the_table_is_empty() {
    // S = 69: -11 at 10, -1 at 20.
    golden(
        "lazy",
        REFUSAL,
        "at 0 sla 69
         at 0 sla 69
         at 5 sla 1000",
        " 0.000 arrive r0 m input 0
          0.000 arrive r1 m input 0
          0.000 admit b0 [r0, r1]
          0.000 run b0 net.0 [r0@0 r1@0]
          5.000 arrive r2 m input 0
         10.000 run b0 net.1 [r0@0 r1@0]
         20.000 run b0 net.2 [r0@0 r1@0]
         30.000 finish r0 met
         30.000 finish r1 met
         30.000 admit b1 [r2]
         30.000 run b1 net.0 [r2@0]
         40.000 run b1 net.1 [r2@0]
         50.000 run b1 net.2 [r2@0]
         60.000 finish r2 met",
    );
}

/// r0 cannot be met and keeps everyone out until it ends.
const SHUT_OUT: &str = "
     0.000 arrive r0 m input 0
     0.000 admit b0 [r0]
     0.000 run b0 net.0 [r0@0]
     5.000 arrive r1 m input 0
    10.000 run b0 net.1 [r0@0]
    20.000 run b0 net.2 [r0@0]
    30.000 finish r0 violated
    30.000 admit b1 [r1]
    30.000 run b1 net.0 [r1@0]
    40.000 run b1 net.1 [r1@0]
    50.000 run b1 net.2 [r1@0]
    60.000 finish r1 met";

#[test]
fn late_admits_lets_everyone_in_once_the_oldest_is_late() {
    let profile = "net once 10 10 10";
    // Deadline 15. Slack at 10: 15 - 10 - (20 + 30) = -45; at 20: 15 - 20 - (10 + 30) = -45.
    let arrivals = "at 0 sla 15
                    at 5 sla 1000";
    golden("lazy", profile, arrivals, SHUT_OUT);
    golden(
        "lazy:late-admits",
        profile,
        arrivals,
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          5.000 arrive r1 m input 0
         10.000 run b0 net.1 [r0@0]                        // not late yet: the test, -45
         20.000 admit b1 [r1]                              // 15 < 20: late
         20.000 preempt b0 by b1
         20.000 run b1 net.0 [r1@0], parked b0 [r0]
         30.000 run b1 net.1 [r1@0], parked b0 [r0]
         40.000 merge b1 into b0
         40.000 run b0 net.2 [r0@0 r1@0]
         50.000 finish r0 violated
         50.000 finish r1 met",
    );
    // Deadline 20: at 20 it is not past, and the next boundary is the end.
    let arrivals = "at 0 sla 20
                    at 5 sla 1000";
    golden("lazy:late-admits", profile, arrivals, SHUT_OUT);
}

#[test]
fn members_leave_at_different_decoder_steps() {
    golden(
        "lazy",
        "p90 2; enc once 10; dec until_stop 5+1",
        "at 0 in 1 out 1 sla 1000
         at 0 in 1 out 3 sla 1000
         at 0 in 1 out 2 sla 1000
         at 12 in 1 out 1 sla 1000",
        " 0.000 arrive r0 m input 1
          0.000 arrive r1 m input 1
          0.000 arrive r2 m input 1
          0.000 admit b0 [r0, r1, r2]
          0.000 run b0 enc.0 [r0@0 r1@0 r2@0]              // 10 at any batch
         10.000 run b0 dec.0 [r0@0 r1@0 r2@0]              // 7 at batch 3: to 17
         12.000 arrive r3 m input 1
         17.000 finish r0 met
         17.000 admit b1 [r3]                              // 5 + 5 + (10 + 2 x 5) left: passes
         17.000 preempt b0 by b1
         17.000 run b1 enc.0 [r3@0], parked b0 [r1, r2]    // to 27
         27.000 merge b1 into b0                           // shared weights: whatever the step
         27.000 run b0 dec.0 [r1@1 r2@1 r3@0]              // 7 at batch 3: to 34
         34.000 finish r2 met
         34.000 finish r3 met
         34.000 run b0 dec.0 [r1@2]                        // 5 at batch 1: to 39
         39.000 finish r1 met",
    );
}

#[test]
fn members_that_part_ways_split_with_the_less_progressed_on_top() {
    // Where the inputs end is known when the pass is issued, so the split is noted there.
    golden(
        "lazy",
        "enc per_input_step 10+2; head once 20+4 20+4",
        "at 0 in 1 sla 1000
         at 0 in 3 sla 1000
         at 0 in 2 sla 1000",
        " 0.000 arrive r0 m input 1
          0.000 arrive r1 m input 3
          0.000 arrive r2 m input 2
          0.000 admit b0 [r0, r1, r2]
          0.000 run b0 enc.0 [r0@0 r1@0 r2@0]              // 14 at batch 3: to 14
          0.000 split b0, ahead b1 [r0]                    // bottom to top: b1 b0
         14.000 run b0 enc.0 [r1@1 r2@1], parked b1 [r0]   // 12 at batch 2: to 26
         14.000 split b0, ahead b2 [r2]                    // b1 b2 b0
         26.000 run b0 enc.0 [r1@2], parked b1 [r0] b2 [r2] // 10: to 36
         36.000 merge b0 into b2                           // all stand at head.0: pair by pair
         36.000 merge b2 into b1
         36.000 run b1 head.0 [r0@0 r2@0 r1@0]             // 28 at batch 3: to 64
         64.000 run b1 head.1 [r0@0 r2@0 r1@0]             // to 92
         92.000 finish r0 met
         92.000 finish r2 met
         92.000 finish r1 met",
    );
}

#[test]
fn an_empty_table_starts_everything_within_max_batch() {
    golden(
        "lazy",
        "max_batch 2; net once 10+1 10+1",
        "at 0
         at 0
         at 0
         at 25
         at 25",
        " 0.000 arrive r0 m input 0
          0.000 arrive r1 m input 0
          0.000 arrive r2 m input 0
          0.000 admit b0 [r0, r1]                          // two fit
          0.000 run b0 net.0 [r0@0 r1@0]                   // 11 at batch 2: to 11
         11.000 run b0 net.1 [r0@0 r1@0]                   // two in flight: no room for r2; to 22
         22.000 finish r0 met
         22.000 finish r1 met
         22.000 admit b1 [r2]
         22.000 run b1 net.0 [r2@0]                        // 10: to 32
         25.000 arrive r3 m input 0
         25.000 arrive r4 m input 0
         32.000 admit b2 [r3]                              // room for one of the two
         32.000 preempt b1 by b2
         32.000 run b2 net.0 [r3@0], parked b1 [r2]        // 10: to 42
         42.000 merge b2 into b1
         42.000 run b1 net.1 [r2@0 r3@0]                   // 11: to 53
         53.000 finish r2 met
         53.000 finish r3 met
         53.000 admit b3 [r4]
         53.000 run b3 net.0 [r4@0]
         63.000 run b3 net.1 [r4@0]
         73.000 finish r4 met",
    );
}

#[test]
fn zero_lengths_skip_blocks() {
    golden(
        "lazy",
        "enc per_input_step 10; head once 20; dec until_stop 5",
        "at 0 in 0 out 1
         at 0 in 1 out 0",
        " 0.000 arrive r0 m input 0
          0.000 arrive r1 m input 1
          0.000 admit b0 [r0, r1]
          0.000 split b0, ahead b1 [r0]                    // no input: r0 begins at the head
          0.000 run b0 enc.0 [r1@0], parked b1 [r0]
         10.000 merge b0 into b1
         10.000 run b1 head.0 [r0@0 r1@0]
         30.000 finish r1 met                              // no output: it ends here
         30.000 run b1 dec.0 [r0@0]
         35.000 finish r0 met",
    );
}

#[test]
fn who_passes_nothing_ends_when_admitted() {
    golden(
        "lazy",
        "enc per_input_step 10; dec until_stop 5",
        "at 7 in 0 out 0
         at 7 in 0 out 1",
        " 7.000 arrive r0 m input 0
          7.000 arrive r1 m input 0
          7.000 admit b0 [r0, r1]
          7.000 finish r0 met
          7.000 run b0 dec.0 [r1@0]
         12.000 finish r1 met",
    );
}

#[test]
fn merge_comes_before_push_at_a_loop_head() {
    golden(
        "lazy",
        "enc per_input_step 10 10",
        "at 0 in 3 sla 1000
         at 15 in 2 sla 1000",
        " 0.000 arrive r0 m input 3
          0.000 admit b0 [r0]
          0.000 run b0 enc.0 [r0@0]
         10.000 run b0 enc.1 [r0@0]
         15.000 arrive r1 m input 2
         20.000 admit b1 [r1]                              // b0 stands at enc.0 too, but merges
         20.000 preempt b0 by b1                           // were looked for before the push
         20.000 run b1 enc.0 [r1@0], parked b0 [r0]
         30.000 run b1 enc.1 [r1@0], parked b0 [r0]        // b0 at enc.0, b1 at enc.1
         40.000 merge b1 into b0                           // one pass later
         40.000 run b0 enc.0 [r0@1 r1@1]
         50.000 run b0 enc.1 [r0@1 r1@1]
         60.000 finish r1 met
         60.000 run b0 enc.0 [r0@2]
         70.000 run b0 enc.1 [r0@2]
         80.000 finish r0 met",
    );
}

#[test]
fn graph_pads_to_the_longest_and_ends_together() {
    // A window of 30.
    golden(
        "graph:0.03",
        "max_batch 3; enc per_input_step 10+2; dec until_stop 5+1",
        "at 0 in 1 out 3
         at 12 in 2 out 1
         at 35 in 1 out 1
         at 90 in 1 out 1
         at 90 in 1 out 1
         at 90 in 1 out 1",
        " 0.000 arrive r0 m input 1
         12.000 arrive r1 m input 2
         30.000 admit b0 [r0, r1]                          // r0 has waited 30
         30.000 run b0 enc.0 [r0@0 r1@0]                   // 12 at batch 2: to 42
         35.000 arrive r2 m input 1                        // nobody joins
         42.000 run b0 enc.0 [r0@1~ r1@1]                  // padding costs as much: to 54
         54.000 run b0 dec.0 [r0@0 r1@0]                   // 6 at batch 2: to 60
         60.000 run b0 dec.0 [r0@1 r1@1~]                  // to 66
         66.000 run b0 dec.0 [r0@2 r1@2~]                  // to 72
         72.000 finish r0 met
         72.000 finish r1 met                              // its output ended at 60
         72.000 admit b1 [r2]                              // due since 65
         72.000 run b1 enc.0 [r2@0]                        // 10: to 82
         82.000 run b1 dec.0 [r2@0]                        // 5: to 87
         87.000 finish r2 met
         90.000 arrive r3 m input 1
         90.000 arrive r4 m input 1
         90.000 arrive r5 m input 1
         90.000 admit b2 [r3, r4, r5]                      // a full batch does not wait
         90.000 run b2 enc.0 [r3@0 r4@0 r5@0]              // 14 at batch 3: to 104
        104.000 run b2 dec.0 [r3@0 r4@0 r5@0]              // 7 at batch 3: to 111
        111.000 finish r3 met
        111.000 finish r4 met
        111.000 finish r5 met",
    );
}

#[test]
fn oracle_admits_by_batched_latencies() {
    let profile = "net once 10+1 10+1 10+1";
    // Deadline 45. Serialised: at 10, 45 - 10 - (20 + 30) = -15; at 20, 45 - 20 - (10 + 30) = -15.
    let refused = "
         0.000 arrive r0 m input 0
         0.000 admit b0 [r0]
         0.000 run b0 net.0 [r0@0]
         5.000 arrive r1 m input 0
        10.000 run b0 net.1 [r0@0]
        20.000 run b0 net.2 [r0@0]
        30.000 finish r0 met
        30.000 admit b1 [r1]
        30.000 run b1 net.0 [r1@0]
        40.000 run b1 net.1 [r1@0]
        50.000 run b1 net.2 [r1@0]
        60.000 finish r1 met";
    let arrivals = "at 0 sla 45
                    at 5 sla 1000";
    golden("lazy", profile, arrivals, refused);
    // Batched: r0 needs 2 x 11, r1 3 x 11 at the merged size 2: 45 - 10 - 33 = 2.
    golden(
        "oracle",
        profile,
        arrivals,
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          5.000 arrive r1 m input 0
         10.000 admit b1 [r1]
         10.000 preempt b0 by b1
         10.000 run b1 net.0 [r1@0], parked b0 [r0]        // 10 at batch 1: to 20
         20.000 merge b1 into b0
         20.000 run b0 net.1 [r0@0 r1@0]                   // 11 at batch 2: to 31
         31.000 run b0 net.2 [r0@0 r1@0]                   // to 42
         42.000 finish r0 met
         42.000 finish r1 met",
    );
    // Deadline 42: 42 - 10 - 33 = -1, and at 20, 42 - 20 - 33 = -11.
    let arrivals = "at 0 sla 42
                    at 5 sla 1000";
    golden("oracle", profile, arrivals, refused);
}

#[test]
fn oracle_knows_the_output_lengths() {
    let profile = "p90 4; dec until_stop 10";
    let arrivals = "at 0 out 2 sla 35
                    at 5 out 1 sla 1000";
    // Predicted at 10: r0 4 - 1 = 3 steps, r1 4: 35 - 10 - 70 = -45.
    golden(
        "lazy",
        profile,
        arrivals,
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 dec.0 [r0@0]
          5.000 arrive r1 m input 0
         10.000 run b0 dec.0 [r0@1]
         20.000 finish r0 met
         20.000 admit b1 [r1]
         20.000 run b1 dec.0 [r1@0]
         30.000 finish r1 met",
    );
    // Known: one step each, and at once: 35 - 10 - 10 = 15.
    golden(
        "oracle",
        profile,
        arrivals,
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 dec.0 [r0@0]
          5.000 arrive r1 m input 0
         10.000 admit b1 [r1]                              // pushed at the loop head: alone
         10.000 preempt b0 by b1
         10.000 run b1 dec.0 [r1@0], parked b0 [r0]
         20.000 finish r1 met
         20.000 run b0 dec.0 [r0@1]
         30.000 finish r0 met",
    );
}
