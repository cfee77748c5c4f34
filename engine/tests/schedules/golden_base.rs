//! Timelines of the base rules of `adaptive`, worked out by hand. The language of the fixtures is
//! that of `common/golden.rs`.

use crate::common::golden::{plain, timeline};

#[track_caller]
fn golden(policy: &str, profile: &str, arrivals: &str, expected: &str) {
    assert_eq!(timeline(policy, profile, arrivals, false), plain(expected));
}

#[test]
fn front_starts_the_next_batch_when_the_last_has_ended() {
    golden(
        "front",
        "max_batch 4; enc once 10+2; dec until_stop 5+1",
        "at 0 in 1 out 1
         at 3 in 1 out 2
         at 4 in 1 out 1",
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 enc.0 [r0@0]
          3.000 arrive r1 m input 1
          4.000 arrive r2 m input 1
         10.000 run b0 dec.0 [r0@0]              // nobody joins
         15.000 finish r0 met
         15.000 admit b1 [r1, r2]
         15.000 run b1 enc.0 [r1@0 r2@0]         // 12 at batch 2: to 27
         27.000 run b1 dec.0 [r1@0 r2@0]         // 6: to 33
         33.000 finish r2 met                    // leaves alone: no padding
         33.000 run b1 dec.0 [r1@1]
         38.000 finish r1 met",
    );
}

#[test]
fn join_catches_up_where_it_pays() {
    // At 10 the one in flight needs 30 more. Together: 10 to catch up and 30, 40 for each of two.
    // Apart: 30, and 30 + 40. 80 < 100, so r1 joins.
    // At 30 two in flight need 20 more. Together: 20 and 20, 40 for each of three. Apart: twice
    // 20, and 20 + 40. 120 > 100, so r2 waits.
    golden(
        "join:0",
        "max_batch 4; net once 10 10 10 10",
        "at 0 in 1 out 1
         at 3 in 1 out 1
         at 28 in 1 out 1",
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          3.000 arrive r1 m input 1
         10.000 admit b1 [r1]
         10.000 preempt b0 by b1
         10.000 run b1 net.0 [r1@0], parked b0 [r0]
         20.000 merge b1 into b0
         20.000 run b0 net.1 [r0@0 r1@0]
         28.000 arrive r2 m input 1
         30.000 run b0 net.2 [r0@0 r1@0]
         40.000 run b0 net.3 [r0@0 r1@0]
         50.000 finish r0 met
         50.000 finish r1 met
         50.000 admit b2 [r2]
         50.000 run b2 net.0 [r2@0]
         60.000 run b2 net.1 [r2@0]
         70.000 run b2 net.2 [r2@0]
         80.000 run b2 net.3 [r2@0]
         90.000 finish r2 met",
    );
}

#[test]
fn join_counts_those_who_queue_behind() {
    // As above, but 20 behind: 120 + 20 x 40 < 100 + 20 x 60, so r2 joins too.
    golden(
        "join:20",
        "max_batch 4; net once 10 10 10 10",
        "at 0 in 1 out 1
         at 0 in 1 out 1
         at 18 in 1 out 1",
        " 0.000 arrive r0 m input 1
          0.000 arrive r1 m input 1
          0.000 admit b0 [r0, r1]
          0.000 run b0 net.0 [r0@0 r1@0]
         10.000 run b0 net.1 [r0@0 r1@0]
         18.000 arrive r2 m input 1
         20.000 admit b1 [r2]
         20.000 preempt b0 by b1
         20.000 run b1 net.0 [r2@0], parked b0 [r0, r1]
         30.000 run b1 net.1 [r2@0], parked b0 [r0, r1]
         40.000 merge b1 into b0
         40.000 run b0 net.2 [r0@0 r1@0 r2@0]
         50.000 run b0 net.3 [r0@0 r1@0 r2@0]
         60.000 finish r0 met
         60.000 finish r1 met
         60.000 finish r2 met",
    );
}

#[test]
fn balance_admits_when_waiting_outweighs_the_disturbance() {
    golden(
        "balance:1",
        "max_batch 4; enc once 4; dec until_stop 5+1",
        "at 0 in 1 out 4
         at 3 in 1 out 1
         at 13 in 1 out 1",
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 enc.0 [r0@0]
          3.000 arrive r1 m input 1
          4.000 run b0 dec.0 [r0@0]                     // r1 has waited 1 < one member x 4
          9.000 admit b1 [r1]                           // 6 >= 4
          9.000 preempt b0 by b1
          9.000 run b1 enc.0 [r1@0], parked b0 [r0]
         13.000 arrive r2 m input 1
         13.000 merge b1 into b0
         13.000 run b0 dec.0 [r0@1 r1@0]                // 0 < two members x 4; 6 to 19
         19.000 finish r1 met
         19.000 admit b2 [r2]                           // 6 >= 4
         19.000 preempt b0 by b2
         19.000 run b2 enc.0 [r2@0], parked b0 [r0]
         23.000 merge b2 into b0
         23.000 run b0 dec.0 [r0@2 r2@0]
         29.000 finish r2 met
         29.000 run b0 dec.0 [r0@3]
         34.000 finish r0 met",
    );
}

#[test]
fn sharing_takes_turns() {
    golden(
        "sharing:0/0/1",
        "max_batch 4; enc per_input_step 4; dec until_stop 5",
        "at 0 in 1 out 3
         at 5 in 3 out 1",
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 enc.0 [r0@0]
          4.000 run b0 dec.0 [r0@0]
          5.000 arrive r1 m input 3
          9.000 admit b1 [r1]
          9.000 preempt b0 by b1
          9.000 run b1 enc.0 [r1@0], parked b0 [r0]     // never launched before
         13.000 preempt b1 by b0
         13.000 run b0 dec.0 [r0@1], parked b1 [r1]
         18.000 preempt b0 by b1
         18.000 run b1 enc.0 [r1@1], parked b0 [r0]
         22.000 preempt b1 by b0
         22.000 run b0 dec.0 [r0@2], parked b1 [r1]
         27.000 finish r0 met
         27.000 run b1 enc.0 [r1@2]
         31.000 run b1 dec.0 [r1@0]
         36.000 finish r1 met",
    );
}

#[test]
fn sharing_prefers_the_front_by_its_weight() {
    // A claim of 4 a node against one: b1, once it has run, runs again when four nodes of others have.
    golden(
        "sharing:0/0/4",
        "max_batch 4; enc per_input_step 4; dec until_stop 5",
        "at 0 in 1 out 7
         at 5 in 3 out 1",
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 enc.0 [r0@0]
          4.000 run b0 dec.0 [r0@0]
          5.000 arrive r1 m input 3
          9.000 admit b1 [r1]
          9.000 preempt b0 by b1
          9.000 run b1 enc.0 [r1@0], parked b0 [r0]     // never launched before
         13.000 preempt b1 by b0
         13.000 run b0 dec.0 [r0@1], parked b1 [r1]
         18.000 run b0 dec.0 [r0@2], parked b1 [r1]
         23.000 run b0 dec.0 [r0@3], parked b1 [r1]
         28.000 run b0 dec.0 [r0@4], parked b1 [r1]     // 4 against 4, and it came first
         33.000 preempt b0 by b1
         33.000 run b1 enc.0 [r1@1], parked b0 [r0]
         37.000 preempt b1 by b0
         37.000 run b0 dec.0 [r0@5], parked b1 [r1]
         42.000 run b0 dec.0 [r0@6], parked b1 [r1]
         47.000 finish r0 met
         47.000 run b1 enc.0 [r1@2]
         51.000 run b1 dec.0 [r1@0]
         56.000 finish r1 met",
    );
}

#[test]
fn iteration_admits_once_between_two_passes() {
    // Whoever is behind the loop leaves first; who cannot be in time joins behind those that can.
    golden(
        "iteration:demote",
        "max_batch 4; enc once 10; dec until_stop 5; end once 3",
        "at 0 in 1 out 1
         at 1 in 1 out 2 sla 20
         at 2 in 1 out 1 sla 100
         at 16 in 1 out 1 sla 100",
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 enc.0 [r0@0]
          1.000 arrive r1 m input 1
          2.000 arrive r2 m input 1
         10.000 run b0 dec.0 [r0@0]              // r0 has joined, its pass comes first
         15.000 run b0 end.0 [r0@0]              // leaving goes before admitting
         16.000 arrive r3 m input 1
         18.000 finish r0 met
         18.000 admit b1 [r2, r3, r1]            // r1 is late already: behind those in time
         18.000 run b1 enc.0 [r2@0 r3@0 r1@0]
         28.000 run b1 dec.0 [r2@0 r3@0 r1@0]
         33.000 split b1, ahead b2 [r2, r3]
         33.000 preempt b1 by b2
         33.000 run b2 end.0 [r2@0 r3@0], parked b1 [r1]
         36.000 finish r2 met
         36.000 finish r3 met
         36.000 run b1 dec.0 [r1@1]
         41.000 run b1 end.0 [r1@0]
         44.000 finish r1 violated",
    );
}

#[test]
fn demote_lets_those_pass_that_can_be_in_time() {
    golden(
        "front:demote",
        "max_batch 1; net once 10",
        "at 0 in 1 out 1 sla 100
         at 1 in 1 out 1 sla 12
         at 2 in 1 out 1 sla 50",
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          1.000 arrive r1 m input 1
          2.000 arrive r2 m input 1
         10.000 finish r0 met
         10.000 admit b1 [r2]                    // r1 would end at 20, 7 late
         10.000 run b1 net.0 [r2@0]
         20.000 finish r2 met
         20.000 admit b2 [r1]                    // nobody else is left
         20.000 run b2 net.0 [r1@0]
         30.000 finish r1 violated",
    );
}

#[test]
fn a_bound_of_waiting_sheds_the_oldest_while_more_wait_than_fill_a_batch() {
    golden(
        "front:within50/shed",
        "max_batch 1; net once 10",
        "at 0 in 1 out 1 sla 30
         at 1 in 1 out 1 sla 30
         at 2 in 1 out 1 sla 30
         at 3 in 1 out 1 sla 60",
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          1.000 arrive r1 m input 1
          2.000 arrive r2 m input 1
          3.000 arrive r3 m input 1
         10.000 finish r0 met
         10.000 finish r1 shed: more wait than can be answered soon   // it would take 19, and half is 15
         10.000 finish r2 shed: more wait than can be answered soon   // 18, and one more waits
         10.000 admit b1 [r3]
         10.000 run b1 net.0 [r3@0]
         20.000 finish r3 met",
    );
    // A batch of two is filled well, and no more wait: all are served, whatever they take.
    golden(
        "front:within50/shed",
        "max_batch 2; net once 10+1",
        "at 0 in 1 out 1 sla 30
         at 1 in 1 out 1 sla 30
         at 2 in 1 out 1 sla 30",
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          1.000 arrive r1 m input 1
          2.000 arrive r2 m input 1
         10.000 finish r0 met
         10.000 admit b1 [r1, r2]
         10.000 run b1 net.0 [r1@0 r2@0]
         21.000 finish r1 met
         21.000 finish r2 met",
    );
    // One fills a batch of its own, and nobody is behind it.
    golden(
        "front:within50/shed",
        "max_batch 4; net once 10+10",
        "at 0 in 1 out 1 sla 30
         at 1 in 1 out 1 samples 3 sla 60",
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          1.000 arrive r1 m input 1
         10.000 finish r0 met
         10.000 admit b1 [r1]
         10.000 run b1 net.0 [r1@0]
         40.000 finish r1 met",
    );
}

#[test]
fn who_has_more_samples_than_the_cap_starts_alone() {
    // 20 a sample: the smallest batch is as good as any, and a cap of one sample.
    golden(
        "join:0/cap90",
        "max_batch 32; net once 20+20",
        "at 0 samples 8
         at 0 samples 8
         at 0",
        " 0.000 arrive r0 m input 0
          0.000 arrive r1 m input 0
          0.000 arrive r2 m input 0
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
        160.000 finish r0 met
        160.000 admit b1 [r1]
        160.000 run b1 net.0 [r1@0]
        320.000 finish r1 met
        320.000 admit b2 [r2]
        320.000 run b2 net.0 [r2@0]
        340.000 finish r2 met",
    );
}

#[test]
fn who_is_found_too_late_within_a_pass_does_not_end_it() {
    golden(
        "join:0/demote",
        "max_batch 4; net once 10 10 10 10 | max_batch 4; net once 10",
        "at 0 in 1 out 1
         at 3 in 1 out 1 sla 5
         at 4 in 1 out 1 samples 4
         at 5 in 1 out 1 model 1",
        " 0.000 arrive r0 m input 1
          0.000 admit b0 [r0]
          0.000 run b0 net.0 [r0@0]
          3.000 arrive r1 m input 1
          4.000 arrive r2 m input 1
          5.000 arrive r3 n input 1
         10.000 run b0 net.1 [r0@0]               // r1 is demoted, and r2, before it, has no room;
         20.000 run b0 net.2 [r0@0]               // r3 does not come in between
         30.000 run b0 net.3 [r0@0]
         40.000 finish r0 met
         40.000 admit b1 [r3]
         40.000 run b1 net.0 [r3@0]
         50.000 finish r3 met
         50.000 admit b2 [r2]                     // when it is its model's turn
         50.000 run b2 net.0 [r2@0]
         60.000 run b2 net.1 [r2@0]
         70.000 run b2 net.2 [r2@0]
         80.000 run b2 net.3 [r2@0]
         90.000 finish r2 met
         90.000 admit b3 [r1]
         90.000 run b3 net.0 [r1@0]
        100.000 run b3 net.1 [r1@0]
        110.000 run b3 net.2 [r1@0]
        120.000 run b3 net.3 [r1@0]
        130.000 finish r1 violated",
    );
}
