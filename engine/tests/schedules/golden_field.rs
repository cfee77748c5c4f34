//! Timelines of the other policies of the field, worked out by hand. The language of the fixtures
//! is that of `common/golden.rs`.

use crate::common::golden::{plain, timeline};

#[track_caller]
fn golden(policy: &str, profile: &str, arrivals: &str, expected: &str) {
    assert_eq!(timeline(policy, profile, arrivals, false), plain(expected));
}

#[test]
fn continuous_joins_and_leaves_between_passes() {
    golden(
        "continuous",
        "max_batch 3; enc once 10+2; dec until_stop 5+1; head once 4+1",
        "at 0 in 1 out 3
         at 3 in 1 out 1
         at 12 in 1 out 2
         at 12 in 1 out 1",
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 enc.0 [r0@0]                        // 10 at batch 1: to 10
          3.000 arrive r1 m input 1
         10.000 run b0 dec.0 [r0@0]                        // r0 joined for this pass: 5, to 15
         12.000 arrive r2 m input 1
         12.000 arrive r3 m input 1
         15.000 admit b1 [r1, r2]                          // room for two beside r0
         15.000 preempt b0 by b1
         15.000 run b1 enc.0 [r1@0 r2@0], parked b0 [r0]   // 12 at batch 2: to 27
         27.000 merge b1 into b0
         27.000 run b0 dec.0 [r0@1 r1@0 r2@0]              // 7 at batch 3: to 34
         34.000 split b0, ahead b2 [r1]                    // r1 has stopped
         34.000 preempt b0 by b2
         34.000 run b2 head.0 [r1@0], parked b0 [r0, r2]   // and leaves first: to 38
         38.000 finish r1 met
         38.000 admit b3 [r3]                              // into its place
         38.000 run b3 enc.0 [r3@0], parked b0 [r0, r2]    // to 48
         48.000 merge b3 into b0
         48.000 run b0 dec.0 [r0@2 r2@1 r3@0]              // to 55: all three stop
         55.000 run b0 head.0 [r0@0 r2@0 r3@0]             // 6 at batch 3: to 61
         61.000 finish r0 met
         61.000 finish r2 met
         61.000 finish r3 met",
    );
}

#[test]
fn continuous_lets_a_pass_run_between_admissions() {
    // Arrivals at every boundary: r0 still advances by a pass an iteration.
    golden(
        "continuous",
        "enc once 10; dec until_stop 5",
        "at 0 in 1 out 2
         at 1 in 1 out 1
         at 16 in 1 out 1",
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 enc.0 [r0@0]                        // to 10
          1.000 arrive r1 m input 1
         10.000 run b0 dec.0 [r0@0]                        // r1 waits for the pass: to 15
         15.000 admit b1 [r1]
         15.000 preempt b0 by b1
         15.000 run b1 enc.0 [r1@0], parked b0 [r0]        // to 25
         16.000 arrive r2 m input 1
         25.000 merge b1 into b0                           // r2 would fit, but the pass comes first
         25.000 run b0 dec.0 [r0@1 r1@0]                   // to 30
         30.000 finish r0 met
         30.000 finish r1 met
         30.000 admit b2 [r2]
         30.000 run b2 enc.0 [r2@0]
         40.000 run b2 dec.0 [r2@0]
         45.000 finish r2 met",
    );
}

#[test]
fn continuous_runs_a_prefix_as_one_batch() {
    golden(
        "continuous",
        "enc per_input_step 10+2; mid once 20; dec until_stop 5+1",
        "at 0 in 1 out 1
         at 0 in 2 out 1",
        " 0.000 arrive r0 m input 1
          0.000 arrive r1 m input 2
          0.000 admit b0 [r0, r1]
          0.000 run b0 enc.0 [r0@0 r1@0]                   // 12 at batch 2: to 12
          0.000 split b0, ahead b1 [r0]
         12.000 run b0 enc.0 [r1@1], parked b1 [r0]        // the one behind first: to 22
         22.000 merge b0 into b1
         22.000 run b1 mid.0 [r0@0 r1@0]                   // to 42
         42.000 run b1 dec.0 [r0@0 r1@0]                   // 6 at batch 2: to 48
         48.000 finish r0 met
         48.000 finish r1 met",
    );
}

#[test]
fn continuous_takes_a_static_graph_as_one_iteration() {
    golden(
        "continuous",
        "max_batch 2; net once 10+2 10+2",
        "at 0
         at 5
         at 6
         at 7",
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          5.000 arrive r1 m input 0
          6.000 arrive r2 m input 0
          7.000 arrive r3 m input 0
         10.000 run b0 net.1 [r0@0]                        // nobody joins: to 20
         20.000 finish r0 met
         20.000 admit b1 [r1, r2]
         20.000 run b1 net.0 [r1@0 r2@0]                   // 12 at batch 2: to 32
         32.000 run b1 net.1 [r1@0 r2@0]                   // to 44
         44.000 finish r1 met
         44.000 finish r2 met
         44.000 admit b2 [r3]
         44.000 run b2 net.0 [r3@0]
         54.000 run b2 net.1 [r3@0]
         64.000 finish r3 met",
    );
}

#[test]
fn cellular_prefers_full_cells_and_then_takes_turns() {
    golden(
        "cellular",
        "max_batch 2; enc per_input_step 10+2; dec until_stop 5+1",
        "at 0 in 2 out 2
         at 5 in 1 out 1
         at 12 in 3 out 1
         at 12 in 1 out 1",
        " 0.000 arrive r0 m input 2
          0.000 admit b0 [r0]
          0.000 run b0 enc.0 [r0@0]                        // 10: to 10
          5.000 arrive r1 m input 1
         10.000 admit b1 [r1]                              // joins between two passes
         10.000 merge b1 into b0
         10.000 run b0 enc.0 [r0@1 r1@0]                   // 12 at batch 2: to 22
         12.000 arrive r2 m input 3
         12.000 arrive r3 m input 1
         22.000 run b0 dec.0 [r0@0 r1@0]                   // both types are full: the later, to 28
         28.000 finish r1 met
         28.000 admit b2 [r2, r3]                          // enc is full, dec is not
         28.000 preempt b0 by b2
         28.000 run b2 enc.0 [r2@0 r3@0], parked b0 [r0]   // to 40
         28.000 split b2, ahead b3 [r3]
         40.000 merge b3 into b0                           // r0 and r3 at dec
         40.000 preempt b2 by b0
         40.000 run b0 dec.0 [r0@1 r3@0], parked b2 [r2]   // 6: to 46
         46.000 finish r0 met
         46.000 finish r3 met
         46.000 run b2 enc.0 [r2@1]
         56.000 run b2 enc.0 [r2@2]
         66.000 run b2 dec.0 [r2@0]
         71.000 finish r2 met",
    );
}

#[test]
fn cellular_runs_a_block_without_a_loop_as_a_whole() {
    golden(
        "cellular",
        "net once 10 10; dec until_stop 5",
        "at 0 out 2
         at 5 out 1
         at 12 out 1",
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          5.000 arrive r1 m input 0
         10.000 run b0 net.1 [r0@0]                        // nobody joins within a cell
         12.000 arrive r2 m input 0
         20.000 run b0 dec.0 [r0@0]                        // neither type is full, net ran last
         25.000 admit b1 [r1, r2]                          // dec ran last
         25.000 preempt b0 by b1
         25.000 run b1 net.0 [r1@0 r2@0], parked b0 [r0]
         35.000 run b1 net.1 [r1@0 r2@0], parked b0 [r0]
         45.000 merge b1 into b0
         45.000 run b0 dec.0 [r0@1 r1@0 r2@0]
         50.000 finish r0 met
         50.000 finish r1 met
         50.000 finish r2 met",
    );
}

#[test]
fn edf_switches_where_that_meets_a_deadline() {
    let profile = "net once 10 10 10";
    // At 10: r1 first ends at 40, second at 60; r0 is due at 1000 either way.
    golden(
        "edf",
        profile,
        "at 0 sla 1000
         at 5 sla 50",
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          5.000 arrive r1 m input 0
         10.000 admit b1 [r1]                              // due at 55: met first, late second
         10.000 preempt b0 by b1
         10.000 run b1 net.0 [r1@0], parked b0 [r0]
         20.000 merge b1 into b0
         20.000 run b0 net.1 [r0@0 r1@0]
         30.000 run b0 net.2 [r0@0 r1@0]
         40.000 finish r0 met
         40.000 finish r1 met",
    );
    // Due at 65, it can wait.
    golden(
        "edf",
        profile,
        "at 0 sla 1000
         at 5 sla 60",
        " 0.000 arrive r0 m input 0
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
         60.000 finish r1 met",
    );
}

#[test]
fn edf_does_not_lose_two_deadlines_for_one() {
    // At 10: r2 (due 43) would be met first and late second; r0 and r1 (due 45) the other way.
    golden(
        "edf",
        "net once 10 10 10",
        "at 0 sla 45
         at 0 sla 45
         at 5 sla 38",
        " 0.000 arrive r0 m input 0
          0.000 arrive r1 m input 0
          0.000 admit b0 [r0, r1]
          0.000 run b0 net.0 [r0@0 r1@0]
          5.000 arrive r2 m input 0
         10.000 run b0 net.1 [r0@0 r1@0]
         20.000 run b0 net.2 [r0@0 r1@0]                   // late by now, but still harmful
         30.000 finish r0 met
         30.000 finish r1 met
         30.000 admit b1 [r2]
         30.000 run b1 net.0 [r2@0]
         40.000 run b1 net.1 [r2@0]
         50.000 run b1 net.2 [r2@0]
         60.000 finish r2 violated",
    );
}

#[test]
fn edf_joins_at_the_start_those_due_first() {
    golden(
        "edf",
        "max_batch 2; dec until_stop 10",
        "at 0 out 3
         at 5 out 1 sla 100000
         at 6 out 1 sla 50",
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 dec.0 [r0@0]
          5.000 arrive r1 m input 0
          6.000 arrive r2 m input 0
         10.000 admit b1 [r2]                              // room for one: due 56 before 100005
         10.000 merge b1 into b0
         10.000 run b0 dec.0 [r0@1 r2@0]
         20.000 finish r2 met
         20.000 admit b2 [r1]
         20.000 merge b2 into b0
         20.000 run b0 dec.0 [r0@2 r1@0]
         30.000 finish r0 met
         30.000 finish r1 met",
    );
}

#[test]
fn edf_starts_no_more_than_the_first_deadline_bears() {
    // 10 for one, 14 for two, 18 for three; r1 is due at 15.
    golden(
        "edf",
        "net once 10+4",
        "at 0 sla 100
         at 0 sla 15
         at 0",
        " 0.000 arrive r0 m input 0
          0.000 arrive r1 m input 0
          0.000 arrive r2 m input 0
          0.000 admit b0 [r1, r0]                          // 14 <= 15 < 18
          0.000 run b0 net.0 [r1@0 r0@0]
         14.000 finish r1 met
         14.000 finish r0 met
         14.000 admit b1 [r2]
         14.000 run b1 net.0 [r2@0]
         24.000 finish r2 met",
    );
}

#[test]
fn edf_serves_who_has_no_target_after_its_patience() {
    // A patience of 30: r1 counts as due at 31, before r2 (due 42). r0 is due at 20.
    golden(
        "edf:patience=0.03",
        "max_batch 1; net once 10",
        "at 0 sla 20
         at 1
         at 2 sla 40",
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          1.000 arrive r1 m input 0
          2.000 arrive r2 m input 0
         10.000 finish r0 met
         10.000 admit b1 [r1]
         10.000 run b1 net.0 [r1@0]
         20.000 finish r1 met
         20.000 admit b2 [r2]
         20.000 run b2 net.0 [r2@0]
         30.000 finish r2 met",
    );
}

#[test]
fn triton_ends_a_batch_at_the_first_request_of_another_shape() {
    let profile = "enc per_input_step 10+2";
    let arrivals = "at 0 in 1
                    at 2 in 1
                    at 3 in 2
                    at 4 in 1";
    golden(
        "triton",
        profile,
        arrivals,
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 enc.0 [r0@0]
          2.000 arrive r1 m input 1
          3.000 arrive r2 m input 2
          4.000 arrive r3 m input 1
         10.000 finish r0 met
         10.000 admit b1 [r1]                              // r2 is longer; r3 does not overtake it
         10.000 run b1 enc.0 [r1@0]
         20.000 finish r1 met
         20.000 admit b2 [r2]
         20.000 run b2 enc.0 [r2@0]
         30.000 run b2 enc.0 [r2@1]
         40.000 finish r2 met
         40.000 admit b3 [r3]
         40.000 run b3 enc.0 [r3@0]
         50.000 finish r3 met",
    );
    golden(
        "triton:pad",
        profile,
        arrivals,
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 enc.0 [r0@0]
          2.000 arrive r1 m input 1
          3.000 arrive r2 m input 2
          4.000 arrive r3 m input 1
         10.000 finish r0 met
         10.000 admit b1 [r1, r2, r3]
         10.000 run b1 enc.0 [r1@0 r2@0 r3@0]              // 14 at batch 3
         24.000 run b1 enc.0 [r1@1~ r2@1 r3@1~]
         38.000 finish r1 met
         38.000 finish r2 met
         38.000 finish r3 met",
    );
}

#[test]
fn triton_waits_for_a_preferred_size_or_the_delay() {
    golden(
        "triton:preferred=2,delay=0.05",
        "net once 10+1",
        "at 0
         at 20
         at 25
         at 25
         at 25",
        " 0.000 arrive r0 m input 0                        // one is not preferred
         20.000 arrive r1 m input 0
         20.000 admit b0 [r0, r1]                          // two are
         20.000 run b0 net.0 [r0@0 r1@0]                   // 11 at batch 2: to 31
         25.000 arrive r2 m input 0
         25.000 arrive r3 m input 0
         25.000 arrive r4 m input 0
         31.000 finish r0 met
         31.000 finish r1 met
         31.000 admit b1 [r2, r3]                          // waited 6 of 50: the preferred size
         31.000 run b1 net.0 [r2@0 r3@0]
         42.000 finish r2 met
         42.000 finish r3 met
         75.000 admit b2 [r4]                              // waited 50
         75.000 run b2 net.0 [r4@0]
         85.000 finish r4 met",
    );
    // Past the delay all that is pending goes, preferred or not.
    golden(
        "triton:preferred=2,delay=0.05",
        "net once 60+1",
        "at 0
         at 55
         at 55
         at 55",
        " 0.000 arrive r0 m input 0
         50.000 admit b0 [r0]
         50.000 run b0 net.0 [r0@0]
         55.000 arrive r1 m input 0
         55.000 arrive r2 m input 0
         55.000 arrive r3 m input 0
        110.000 finish r0 met
        110.000 admit b1 [r1, r2, r3]                      // waited 55
        110.000 run b1 net.0 [r1@0 r2@0 r3@0]
        172.000 finish r1 met
        172.000 finish r2 met
        172.000 finish r3 met",
    );
}

#[test]
fn triton_stops_before_a_request_that_jumps_over_the_largest_preferred_size() {
    golden(
        "triton:preferred=4",
        "max_batch 8; net once 10",
        "at 0
         at 5 samples 3
         at 5 samples 3
         at 5",
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]                              // without a delay nobody waits
          0.000 run b0 net.0 [r0@0]
          5.000 arrive r1 m input 0
          5.000 arrive r2 m input 0
          5.000 arrive r3 m input 0
         10.000 finish r0 met
         10.000 admit b1 [r1]                              // 3 + 3 > 4, though 7 would fit
         10.000 run b1 net.0 [r1@0]
         20.000 finish r1 met
         20.000 admit b2 [r2, r3]                          // 3 + 1 are preferred
         20.000 run b2 net.0 [r2@0 r3@0]
         30.000 finish r2 met
         30.000 finish r3 met",
    );
}

#[test]
fn triton_serves_levels_in_order() {
    golden(
        "triton:levels=2",
        "max_batch 2; net once 10",
        "at 0 priority 2
         at 1 priority 2
         at 2 priority 1
         at 3",
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          1.000 arrive r1 m input 0
          2.000 arrive r2 m input 0
          3.000 arrive r3 m input 0                        // of the last level by default
         10.000 finish r0 met
         10.000 admit b1 [r2, r1]
         10.000 run b1 net.0 [r2@0 r1@0]
         20.000 finish r2 met
         20.000 finish r1 met
         20.000 admit b2 [r3]
         20.000 run b2 net.0 [r3@0]
         30.000 finish r3 met",
    );
}

#[test]
fn triton_refuses_or_delays_who_has_waited_too_long() {
    let arrivals = "at 0
                    at 1
                    at 2
                    at 12";
    golden(
        "triton:timeout=0.015,action=reject",
        "max_batch 1; net once 10",
        arrivals,
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          1.000 arrive r1 m input 0
          2.000 arrive r2 m input 0
         10.000 finish r0 met
         10.000 admit b1 [r1]                              // waited 9 of 15
         10.000 run b1 net.0 [r1@0]
         12.000 arrive r3 m input 0
         20.000 finish r1 met
         20.000 finish r2 shed: the queue timeout has expired
         20.000 admit b2 [r3]
         20.000 run b2 net.0 [r3@0]
         30.000 finish r3 met",
    );
    golden(
        "triton:timeout=0.015,action=delay",
        "max_batch 1; net once 10",
        arrivals,
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          1.000 arrive r1 m input 0
          2.000 arrive r2 m input 0
         10.000 finish r0 met
         10.000 admit b1 [r1]
         10.000 run b1 net.0 [r1@0]
         12.000 arrive r3 m input 0
         20.000 finish r1 met
         20.000 admit b2 [r3]                              // before r2, which has waited 18
         20.000 run b2 net.0 [r3@0]
         30.000 finish r3 met
         30.000 admit b3 [r2]
         30.000 run b3 net.0 [r2@0]
         40.000 finish r2 met",
    );
}

#[test]
fn triton_sends_before_a_queue_timeout_passes() {
    golden(
        "triton:preferred=4,delay=0.05,timeout=0.02",
        "net once 10",
        "at 0",
        " 0.000 arrive r0 m input 0
         20.000 admit b0 [r0]                              // the timeout, not the delay
         20.000 run b0 net.0 [r0@0]
         30.000 finish r0 met",
    );
}

#[test]
fn triton_refuses_beyond_its_queue() {
    golden(
        "triton:max-queue=2",
        "max_batch 1; net once 10",
        "at 0
         at 5
         at 5
         at 6",
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          5.000 arrive r1 m input 0
          5.000 arrive r2 m input 0
          6.000 arrive r3 m input 0
         10.000 finish r0 met
         10.000 finish r3 shed: exceeds the maximum queue size
         10.000 admit b1 [r1]
         10.000 run b1 net.0 [r1@0]
         20.000 finish r1 met
         20.000 admit b2 [r2]
         20.000 run b2 net.0 [r2@0]
         30.000 finish r2 met",
    );
}

#[test]
fn triton_refuses_the_youngest_though_an_older_one_is_delayed() {
    golden(
        "triton:max-queue=2",
        "max_batch 1; net once 100",
        "at 0
         at 5 delay 10
         at 20
         at 30",
        " 0.000 arrive r0 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          5.000 arrive r1 m input 0
         20.000 arrive r2 m input 0                        // r1 stands behind it now
         30.000 arrive r3 m input 0
        100.000 finish r0 met
        100.000 finish r3 shed: exceeds the maximum queue size
        100.000 admit b1 [r2]
        100.000 run b1 net.0 [r2@0]
        200.000 finish r2 met
        200.000 admit b2 [r1]
        200.000 run b2 net.0 [r1@0]
        300.000 finish r1 met",
    );
}

#[test]
fn graph_counts_the_window_of_those_that_are_delayed() {
    golden(
        "graph:0.03",
        "max_batch 9; net once 1",
        "at 0 delay 10
         at 9 delay 10
         at 18 delay 10
         at 27 delay 10",
        " 0.000 arrive r0 m input 0
          9.000 arrive r1 m input 0
         18.000 arrive r2 m input 0
         27.000 arrive r3 m input 0
         30.000 admit b0 [r3, r0, r1, r2]                  // r3 is not delayed yet
         30.000 run b0 net.0 [r3@0 r0@0 r1@0 r2@0]
         31.000 finish r3 met
         31.000 finish r0 met
         31.000 finish r1 met
         31.000 finish r2 met",
    );
}
