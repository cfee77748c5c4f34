//! Loops over constants.

/// Runs the block for each constant `$i` below `$n`: up to 14 rows, 4 panels or 8 half panels. Rows and
/// columns of a tile must be constants: an accumulator that is indexed in a loop which the compiler
/// keeps lives in memory.
macro_rules! unroll {
    (row $i:ident < $n:expr, $body:block) => {
        unroll!(@ $i $n, $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13)
    };
    (panel $i:ident < $n:expr, $body:block) => {
        unroll!(@ $i $n, $body; 0 1 2 3)
    };
    (half $i:ident < $n:expr, $body:block) => {
        unroll!(@ $i $n, $body; 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident $n:expr, $body:block; $($k:literal)*) => {
        $(if $k < $n {
            #[allow(non_upper_case_globals, reason = "it reads as the index that it is")]
            const $i: usize = $k;
            $body
        })*
    };
}

pub(super) use unroll;
