//! Errors that are asked for: the `n`th call of a function answers a code instead of doing what it
//! is there for. A wait that answers success and has not waited is such an error too: it shows what
//! a program relies on it for.

use super::Code;

/// Environment variable: `NAME:N:CODE` or `NAME:FROM-TO:CODE`, several with commas between.
pub(super) const VARIABLE: &str = "LAZYBATCH_EMULATOR_FAIL";
/// The name under which kernels are counted when they run.
pub(super) const KERNEL: &str = "kernel";
/// Functions that wait or ask whether something is over: they may answer success unasked. From
/// others that would be an answer without a result.
const WAITS: [&str; 6] = [
    "cuCtxSynchronize",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// One rule.
#[derive(Debug)]
struct Rule {
    /// A function, without the version that its symbol ends with.
    name: String,
    /// First and last call that fail, counted from 1.
    calls: (u64, u64),
    code: Code,
    seen: u64,
}

/// All rules.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Rule>);

impl Faults {
    /// From the text of the variable.
    ///
    /// # Errors
    /// The rule that is none.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let rules = text.split(',').filter(|rule| !rule.is_empty());
        rules.map(rule).collect::<Result<_, _>>().map(Self)
    }

    /// Counts a call; answers the code that it is to give. The first time that a rule does so is
    /// printed: who asked for it learns when it was, and whether.
    pub(super) fn take(&mut self, symbol: &str) -> Option<Code> {
        let mut found = None;
        for rule in self.0.iter_mut().filter(|r| r.name == plain(symbol)) {
            rule.seen += 1;
            if !(rule.calls.0..=rule.calls.1).contains(&rule.seen) {
                continue;
            }
            if rule.seen == rule.calls.0 {
                let Rule {
                    name, seen, code, ..
                } = &rule;
                eprintln!("CUDA emulator: {VARIABLE}: call {seen} of {name} answers {code:?}");
            }
            found.get_or_insert(rule.code);
        }
        found
    }
}

/// A symbol without its version: `cuMemAlloc` for `cuMemAlloc_v2`.
fn plain(symbol: &str) -> &str {
    let digits = |c: char| c.is_ascii_digit();
    let stem = symbol.trim_end_matches(digits).strip_suffix("_v");
    stem.unwrap_or(symbol)
}

fn rule(text: &str) -> Result<Rule, String> {
    let wrong = || format!("expected NAME:N:CODE or NAME:FROM-TO:CODE, got {text}");
    let mut parts = text.split(':');
    let (Some(name), Some(calls), Some(code), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(wrong());
    };
    let number = |text: &str| text.parse::<u64>().ok();
    let (first, last) = calls.split_once('-').unwrap_or((calls, calls));
    let calls = number(first).zip(number(last));
    let calls = calls.filter(|(first, last)| 1 <= *first && first <= last);
    let calls = calls.ok_or_else(wrong)?;
    let code = Code::named(code).ok_or_else(|| format!("expected a CUDA_ERROR_..., got {code}"))?;
    let name = plain(name);
    if code == Code::Success && !WAITS.contains(&name) {
        return Err(format!(
            "expected a function that waits in front of CUDA_SUCCESS, got {name}"
        ));
    }
    Ok(Rule {
        name: name.to_owned(),
        calls,
        code,
        seen: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_name() {
        let text = "cuMemAlloc:2:CUDA_ERROR_OUT_OF_MEMORY,cuEventQuery:1-3:CUDA_ERROR_NOT_READY";
        let mut faults = Faults::parse(text).unwrap();
        let of = |faults: &mut Faults, name: &str| -> Vec<Option<Code>> {
            (0..4).map(|_| faults.take(name)).collect()
        };
        let memory = Some(Code::OutOfMemory);
        assert_eq!(of(&mut faults, "cuMemAlloc_v2"), [None, memory, None, None]);
        let late = Some(Code::NotReady);
        assert_eq!(of(&mut faults, "cuEventQuery"), [late, late, late, None]);
        assert_eq!(of(&mut faults, "cuMemFree_v2"), [None; 4]);
        let mut faults = Faults::parse("cuStreamSynchronize:2:CUDA_SUCCESS").unwrap();
        let early = Some(Code::Success);
        assert_eq!(
            of(&mut faults, "cuStreamSynchronize"),
            [None, early, None, None]
        );
    }

    #[test]
    fn what_is_no_rule_is_named() {
        for (text, words) in [
            ("cuMemAlloc:2", "got cuMemAlloc:2"),
            ("cuMemAlloc:x:CUDA_ERROR_OUT_OF_MEMORY", "FROM-TO"),
            ("cuMemAlloc:0:CUDA_ERROR_OUT_OF_MEMORY", "got cuMemAlloc:0"),
            (
                "cuMemAlloc:5-3:CUDA_ERROR_OUT_OF_MEMORY",
                "got cuMemAlloc:5-3",
            ),
            ("cuMemAlloc:1:OUT", "expected a CUDA_ERROR_..., got OUT"),
            (
                "cuMemAlloc:1:CUDA_SUCCESS",
                "that waits in front of CUDA_SUCCESS, got cuMemAlloc",
            ),
        ] {
            let error = Faults::parse(text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(Faults::parse("").unwrap().0.is_empty());
    }
}
