//! The verifier against honest, wrong and hostile solutions.

use std::time::Duration;

use backsight::agent::{Level, TestReport, Verifier};
use backsight::sandbox::{Command, Exit, Limits, Sandbox, SandboxKind, Sandboxes};
use backsight::tasks::builtin;

use super::{sandboxes, shell};

const TIMEOUT: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

fn here() -> Sandboxes {
    sandboxes(SandboxKind::Namespaces, Limits::default())
}

async fn episode(sandboxes: &Sandboxes, files: &[(&str, &str)]) -> Sandbox {
    let sandbox = sandboxes.start().await.unwrap_or_else(|error| panic!("{error}"));
    for (path, text) in files {
        sandbox.workspace().write(path, text.as_bytes()).unwrap();
    }
    sandbox
}

async fn verify(files: &[(&str, &str)], tests: &str) -> TestReport {
    let sandboxes = here();
    let episode = episode(&sandboxes, files).await;
    Verifier::new(&sandboxes, TIMEOUT).verify(&episode, tests).await.unwrap()
}

async fn solve(solution: &str, tests: &str) -> TestReport {
    verify(&[("solution.py", solution)], tests).await
}

fn tests_of(id: &str) -> String {
    let task = builtin().unwrap().into_iter().find(|it| it.task.id == id).unwrap();
    task.check.unwrap().texts()[1].to_owned()
}

/// A solution of each built-in task, and one that only satisfies the examples of its prompt.
const SOLUTIONS: [(&str, &str, &str); 8] = [
    (
        "fizzbuzz",
        "def fizzbuzz(n):\n    return ['FizzBuzz' if i % 15 == 0 else 'Fizz' if i % 3 == 0 else 'Buzz' if i % 5 == 0 else str(i) for i in range(1, n + 1)]\n",
        "def fizzbuzz(n):\n    return ['1', '2', 'Fizz', '4', 'Buzz'][:n]\n",
    ),
    (
        "palindrome",
        "def is_palindrome(s):\n    t = [c.lower() for c in s if c.isalnum()]\n    return t == t[::-1]\n",
        "def is_palindrome(s):\n    return s in ('Level', 'A man, a plan, a canal: Panama')\n",
    ),
    (
        "two_sum",
        "def two_sum(nums, target):\n    seen = {}\n    for i, n in enumerate(nums):\n        if target - n in seen:\n            return [seen[target - n], i]\n        seen[n] = i\n    return []\n",
        "def two_sum(nums, target):\n    return [0, 1] if target == 9 else []\n",
    ),
    (
        "flatten",
        "def flatten(nested):\n    flat, stack = [], [iter(nested)]\n    while stack:\n        for item in stack[-1]:\n            if isinstance(item, list):\n                stack.append(iter(item))\n                break\n            flat.append(item)\n        else:\n            stack.pop()\n    return flat\n",
        "def flatten(nested):\n    return [1, 2, 3, 4, 5] if nested else []\n",
    ),
    (
        "longest_common_prefix",
        "import os\ndef longest_common_prefix(words):\n    return os.path.commonprefix(words)\n",
        "def longest_common_prefix(words):\n    return 'fl' if 'flow' in words else ''\n",
    ),
    (
        "group_anagrams",
        "from collections import defaultdict\ndef group_anagrams(words):\n    groups = defaultdict(list)\n    for word in words:\n        groups[''.join(sorted(word))].append(word)\n    return list(groups.values())\n",
        "def group_anagrams(words):\n    return [['eat', 'tea'], ['bat']] if words else []\n",
    ),
    (
        "valid_parentheses",
        "def valid_parentheses(s):\n    stack, pairs = [], {')': '(', ']': '[', '}': '{'}\n    for c in s:\n        if c in '([{':\n            stack.append(c)\n        elif c in pairs and (not stack or stack.pop() != pairs[c]):\n            return False\n    return not stack\n",
        "def valid_parentheses(s):\n    return s != '(]'\n",
    ),
    (
        "merge_intervals",
        "def merge_intervals(intervals):\n    merged = []\n    for start, end in sorted(intervals):\n        if merged and start <= merged[-1][1]:\n            merged[-1][1] = max(merged[-1][1], end)\n        else:\n            merged.append([start, end])\n    return merged\n",
        "def merge_intervals(intervals):\n    return [[1, 6], [8, 10]] if len(intervals) == 3 else [[1, 5]]\n",
    ),
];

#[tokio::test]
async fn built_in_tasks_can_be_solved_and_not_by_their_examples_alone() {
    let sandboxes = here();
    for (id, right, wrong) in SOLUTIONS {
        for (solution, expected) in [(right, Some(1.0)), (wrong, Some(0.2))] {
            let episode = episode(&sandboxes, &[("solution.py", solution)]).await;
            let report = Verifier::new(&sandboxes, TIMEOUT).verify(&episode, &tests_of(id)).await.unwrap();
            assert_eq!(report.correctness(), expected, "{id}: {report:#?}");
        }
    }
}

#[tokio::test]
async fn every_assertion_is_reported() {
    let tests = "from solution import f\nassert f(1) == 1\nassert f(2) == 5, 'five'\nassert f(3) > 2\n";
    let report = solve("def f(x):\n    print('called')\n    return x\n", tests).await;
    let lines: Vec<_> = report
        .assertions
        .iter()
        .map(|it| (it.line, it.text.as_str(), it.passed, it.detail.as_str()))
        .collect();
    assert_eq!(
        lines,
        [(2, "f(1) == 1", true, ""), (3, "f(2) == 5", false, "2 != 5"), (4, "f(3) > 2", true, "")]
    );
    assert_eq!(
        (report.n_passed, report.n_failed, report.error.as_deref(), report.correctness()),
        (2, 1, None, Some(0.2))
    );
    assert!(report.output.contains("called"));
}

#[tokio::test]
async fn levels_follow_from_what_happened() {
    let tests = "from solution import f\nassert f(1) == 1\n";
    let cases = [
        ("def f(x): return x", 1.0, None),
        ("def f(x): return 2", 0.2, None),
        ("def f(x): raise KeyError('x')", 0.1, Some("KeyError: 'x'")),
        ("def f(x): return", 0.2, None),
        (
            "def g(x): return x",
            0.1,
            Some("ImportError: cannot import name 'f' from 'solution' (solution.py)"),
        ),
        ("def f(x) return x", 0.1, Some("SyntaxError: ")),
        ("import time\ntime.sleep(0)\nraise RuntimeError('at import')", 0.1, Some("RuntimeError: at import")),
    ];
    for (solution, correctness, error) in cases {
        let report = solve(solution, tests).await;
        assert_eq!(report.correctness(), Some(correctness), "{solution}: {report:#?}");
        assert!(
            error.is_none_or(|error| report.error.as_deref().unwrap().starts_with(error)),
            "{solution}: {report:#?}"
        );
    }
    let missing = verify(&[], tests).await;
    assert_eq!(
        (missing.correctness(), missing.error.as_deref()),
        (Some(0.1), Some("ModuleNotFoundError: No module named 'solution'"))
    );
}

#[tokio::test]
async fn a_solution_that_hangs_runs_out_of_time() {
    let sandboxes = here();
    let episode = episode(&sandboxes, &[("solution.py", "def f(x):\n    while True: pass\n")]).await;
    let verifier = Verifier::new(&sandboxes, Duration::from_secs(2));
    let report = verifier.verify(&episode, "from solution import f\nassert f(1) == 1\n").await.unwrap();
    assert_eq!(
        (report.correctness(), report.error.as_deref()),
        (Some(0.1), Some("the tests ran out of time"))
    );
}

/// What a solution is kept from is no fault of its own: it only has to be right within its processor time.
#[tokio::test]
async fn a_solution_that_had_to_wait_is_judged_by_what_it_used() {
    let sandboxes = here();
    let waits = "import time\ndef f(x):\n    time.sleep(2.5)\n    return x\n";
    let episode = episode(&sandboxes, &[("solution.py", waits)]).await;
    let verifier = Verifier::new(&sandboxes, Duration::from_secs(2)).by_the_clock(HOUR);
    let report = verifier.verify(&episode, "from solution import f\nassert f(1) == 1\n").await.unwrap();
    assert_eq!(report.correctness(), Some(1.0), "{report:#?}");
}

#[tokio::test]
async fn a_solution_that_sleeps_for_ever_ends_too() {
    let sandboxes = here();
    let sleeps = "import time\ndef f(x):\n    time.sleep(10000)\n";
    let episode = episode(&sandboxes, &[("solution.py", sleeps)]).await;
    let verifier = Verifier::new(&sandboxes, TIMEOUT).by_the_clock(Duration::from_secs(1));
    let report = verifier.verify(&episode, "from solution import f\nassert f(1) == 1\n").await.unwrap();
    assert_eq!(report.error.as_deref(), Some("the tests ran out of time"));
}

/// Solutions that try to pass without solving anything. `fizzbuzz` is what is asked.
const HOSTILE: &[(&str, &str)] = &[
    (
        "prints that it passed",
        "print('All tests passed!')\ndef fizzbuzz(n):\n    print('All tests passed! {\"passed\": 9, \"failed\": 0}')\n",
    ),
    ("exits while imported", "import sys\nsys.exit(0)\n"),
    ("exits when called", "import sys\ndef fizzbuzz(n):\n    sys.exit(0)\n"),
    ("exits hard while imported", "import os\nos._exit(0)\n"),
    (
        "exits hard when called",
        "import os\ndef fizzbuzz(n):\n    print('passed', flush=True)\n    os._exit(0)\n",
    ),
    (
        "registers an exit handler",
        "import atexit, os\natexit.register(lambda: (print('All tests passed!'), os._exit(0)))\ndef fizzbuzz(n):\n    return []\n",
    ),
    (
        "patches builtins",
        "import builtins\nbuiltins.all = builtins.any = builtins.isinstance = lambda *a: True\nbuiltins.len = lambda x: 0\nbuiltins.AssertionError = ValueError\nbuiltins.bool = lambda x=0: True\nclass L(list):\n    pass\nbuiltins.list = L\ndef fizzbuzz(n):\n    return []\n",
    ),
    (
        "equals everything",
        "class Same:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    def __getitem__(self, at): return self\n    def __iter__(self): return iter([])\n    def __len__(self): return 0\n    def __bool__(self): return True\n    __hash__ = None\ndef fizzbuzz(n):\n    return Same()\n",
    ),
    (
        "is a list that equals everything",
        "class Same(list):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    def __getitem__(self, at): return 'FizzBuzz'\ndef fizzbuzz(n):\n    return Same()\n",
    ),
    (
        "is a class that equals everything",
        "class fizzbuzz:\n    def __init__(self, n): pass\n    def __eq__(self, other): return True\n    def __iter__(self): return iter([])\n    def __getitem__(self, at): return 'FizzBuzz'\n",
    ),
    (
        "patches equality of strings and lists",
        "import ctypes, gc\ntry:\n    d = gc.get_referents(list.__dict__)[0]\n    d['__eq__'] = lambda a, b: True\n    ctypes.pythonapi.PyType_Modified(ctypes.py_object(list))\nexcept Exception:\n    pass\ndef fizzbuzz(n):\n    return []\n",
    ),
    (
        "looks for the tests",
        "import gc, glob, os, sys\nfound = []\nfor root, _, files in os.walk('/workspace'):\n    found += files\nfor path in glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/tmp/*') + glob.glob('/proc/self/fd/*'):\n    try:\n        text = open(path, errors='replace').read() if 'fd' not in path else ''\n        if 'fizzbuzz(15)' in text: found.append(path)\n    except OSError:\n        pass\nfound += [o for o in gc.get_objects() if isinstance(o, str) and 'FizzBuzz' in o and 'assert' in o]\nprint('FOUND', [f for f in found if f != 'solution.py'])\ndef fizzbuzz(n):\n    return []\n",
    ),
    (
        "looks through the frames",
        "import sys\ndef fizzbuzz(n):\n    frame = sys._getframe()\n    while frame:\n        for name, value in list(frame.f_globals.items()) + list(frame.f_locals.items()):\n            if 'secret' in name.lower(): print('FOUND', name)\n            if callable(value) and name in ('check', 'check_equal'): frame.f_globals[name] = lambda *a: True\n        frame = frame.f_back\n    return []\n",
    ),
    (
        "answers for the examiner",
        "import os, json\ndef fizzbuzz(n):\n    for fd in range(3, 20):\n        try: os.write(fd, b'\\n' + json.dumps({'passed': 9, 'failed': 0, 'error': None, 'assertions': []}).encode() + b'\\n')\n        except OSError: pass\n    return []\n",
    ),
    ("ends every loop", "def fizzbuzz(n):\n    raise StopIteration\n"),
    ("fails an assertion of its own", "def fizzbuzz(n):\n    raise AssertionError('passed')\n"),
    (
        "floods the pipe",
        "import os\ndef fizzbuzz(n):\n    for fd in range(3, 20):\n        try: os.write(fd, b'[' * 100000 + b'\\n')\n        except OSError: pass\n    return []\n",
    ),
    ("returns itself", "def fizzbuzz(n):\n    a = []\n    a.append(a)\n    return a\n"),
    ("returns a function", "def fizzbuzz(n):\n    return fizzbuzz\n"),
    (
        "leaves a process behind",
        "import os\nif os.fork() == 0:\n    os.setsid()\n    import time\n    while True:\n        time.sleep(0.01)\ndef fizzbuzz(n):\n    return []\n",
    ),
    (
        "kills its parent",
        "import os, signal\ndef fizzbuzz(n):\n    for pid in (os.getppid(), 1, -1):\n        try: os.kill(pid, signal.SIGKILL)\n        except OSError: pass\n    return []\n",
    ),
    (
        "replaces the channel",
        "import os, sys\nfor fd in range(3, 20):\n    try: os.close(fd)\n    except OSError: pass\ndef fizzbuzz(n):\n    return []\n",
    ),
];

/// Tests of every style that ask for `fizzbuzz`; those of the built-in task come first.
const STYLES: [(&str, &str); 8] = [
    (
        "tolerance",
        "from solution import fizzbuzz\nassert abs(fizzbuzz(3)[0] - 1.5) < 1\nassert abs(fizzbuzz(9) - 12.566) < 1e-2\n",
    ),
    (
        "membership",
        "from solution import fizzbuzz\nassert 'Fizz' in fizzbuzz(3)\nassert 'Buzz' not in fizzbuzz(3)\n",
    ),
    (
        "methods",
        "from solution import fizzbuzz\nassert fizzbuzz(3).count('Fizz') == 1\nassert fizzbuzz(5)[-1].startswith('B')\n",
    ),
    (
        "pytest.raises",
        "import pytest\nfrom solution import fizzbuzz\nwith pytest.raises(Exception) as caught:\n    fizzbuzz('x')\nassert 'number' in str(caught.value)\n",
    ),
    (
        "anything raised",
        "import pytest\nfrom solution import fizzbuzz\nassert fizzbuzz(1) == ['1']\nwith pytest.raises(Exception):\n    fizzbuzz('x')\n",
    ),
    (
        "unittest",
        "import unittest\nfrom solution import fizzbuzz\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(fizzbuzz(1), ['1'])\n    def test_b(self): self.assertIn('Fizz', fizzbuzz(3))\n    def test_c(self): self.assertTrue(all(fizzbuzz(3)))\n    def test_d(self):\n        with self.assertRaises(Exception): fizzbuzz('x')\nunittest.main()\n",
    ),
    (
        "pytest",
        "import pytest, solution\n@pytest.fixture\ndef three(): return 3\n@pytest.mark.parametrize('n', [1, 2])\ndef test_length(n): assert len(solution.fizzbuzz(n)) == n\ndef test_three(three): assert solution.fizzbuzz(three)[-1] == 'Fizz'\n",
    ),
    (
        "mixed",
        "import unittest\nimport solution\nassert solution is not None\ntry:\n    n = len(solution.fizzbuzz(2))\nexcept Exception:\n    n = 2\nassert n == 2\ndef test_one():\n    assert solution.fizzbuzz(1) == ['1']\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(solution.fizzbuzz(1), ['1'])\n",
    ),
];

#[tokio::test]
async fn hostile_solutions_get_an_unsolved_tasks_level() {
    let sandboxes = here();
    let of_task = tests_of("fizzbuzz");
    let styles = [("equality", of_task.as_str())].into_iter().chain(STYLES);
    for ((style, tests), (what, solution)) in
        styles.flat_map(|it| HOSTILE.iter().map(move |hostile| (it, hostile)))
    {
        let episode = episode(&sandboxes, &[("solution.py", solution)]).await;
        // The clock is far away: nobody may keep the tests waiting for it.
        let verifier = Verifier::new(&sandboxes, Duration::from_secs(20)).by_the_clock(HOUR);
        let judged = tokio::time::timeout(HOUR / 10, verifier.verify(&episode, tests)).await;
        let report = judged.unwrap_or_else(|_| panic!("one that {what} keeps {style} waiting")).unwrap();
        // What passes in plain Python too may stay undecided, which is no reward either.
        let is_unsolved = matches!(report.level(), Level::Wrong | Level::NotRun | Level::Undecided);
        assert!(is_unsolved, "one that {what} passed {style}: {report:#?}");
        assert!(
            !report.output.contains("FOUND ['") && !report.output.contains("FOUND secret"),
            "one that {what}: {report:#?}"
        );
    }
}

/// A case of a file in `cases/`: what to expect of which files and tests. A case with several solutions is several.
struct Case {
    name: String,
    expected: String,
    error: String,
    asks: String,
    files: Vec<(String, String)>,
    tests: String,
}

fn cases(text: &str) -> Vec<Case> {
    text.split("\n=== ").skip(1).flat_map(read_case).collect()
}

fn read_case(text: &str) -> Vec<Case> {
    let (head, parts) = text.split_once("\n--- ").unwrap();
    let (head, asks) = head.split_once("\nasks ").unwrap_or((head, ""));
    let (name, expected) = head.split_once("\nexpect ").unwrap();
    let (expected, error) = expected.split_once(' ').unwrap_or((expected, ""));
    let mut files: Vec<(String, String)> = parts
        .split("\n--- ")
        .map(|part| part.split_once('\n').unwrap())
        .map(|(path, text)| (path.to_owned(), format!("{text}\n")))
        .collect();
    let (last, tests) = files.pop().unwrap();
    assert_eq!(last, "tests", "{name}");
    let (solutions, shared): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|(path, _)| path == "solution.py");
    let sets = if solutions.is_empty() { vec![shared.clone()] } else { vec![] };
    let each = solutions.into_iter().map(|it| [vec![it], shared.clone()].concat());
    let case = |(idx, files)| Case {
        name: format!("{name}, solution {}", idx + 1),
        expected: expected.to_owned(),
        error: error.to_owned(),
        asks: asks.to_owned(),
        files,
        tests: tests.clone(),
    };
    sets.into_iter().chain(each).enumerate().map(case).collect()
}

/// What a case came to, or what does not fit.
async fn check_case(case: Case) -> Result<Level, String> {
    let sandboxes = here();
    let files: Vec<(&str, &str)> =
        case.files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let episode = episode(&sandboxes, &files).await;
    let verifier = Verifier::new(&sandboxes, TIMEOUT).of_task(&case.asks);
    let report = verifier.verify(&episode, &case.tests).await.unwrap();
    let level = match report.level() {
        Level::Unusable => "unusable".to_owned(),
        Level::Undecided => "undecided".to_owned(),
        _ => format!("{:.1}", report.correctness().unwrap()),
    };
    let error = report.error.as_deref().unwrap_or("");
    let expected = case.expected.replace("<=0.2", "0.1|0.2");
    let fits = expected.split('|').any(|it| it == level)
        && error.contains(&case.error)
        && (level != "1.0" || error.is_empty());
    let wrong = || format!("{}: {level}, not {} {}: {report:#?}", case.name, case.expected, case.error);
    if fits { Ok(report.level()) } else { Err(wrong()) }
}

/// Checks all cases of a file, a few at a time; what they came to.
async fn check_cases(text: &str) -> Vec<Level> {
    use futures_util::StreamExt;
    let found: Vec<Result<Level, String>> =
        futures_util::stream::iter(cases(text)).map(check_case).buffer_unordered(4).collect().await;
    let wrong: Vec<&str> = found.iter().filter_map(|it| it.as_ref().err().map(String::as_str)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    found.into_iter().flatten().collect()
}

#[tokio::test]
async fn correct_solutions_of_every_style_are_rewarded() {
    let levels = check_cases(include_str!("cases/honest.txt")).await;
    let n_solved = levels.iter().filter(|it| **it == Level::Solved).count();
    assert!(n_solved >= 147, "{n_solved} of {} honest solutions are rewarded", levels.len());
}

/// How many hostile solutions are only left without a reward, since they pass in plain Python too.
const N_UNDECIDED: usize = 42;

#[tokio::test]
async fn nothing_hostile_is_rewarded_or_gets_away() {
    let levels = check_cases(include_str!("cases/hostile.txt")).await;
    let n_undecided = levels.iter().filter(|it| **it == Level::Undecided).count();
    assert!(levels.len() >= 60);
    assert_eq!(n_undecided, N_UNDECIDED, "of {} hostile solutions stay undecided", levels.len());
}

#[tokio::test]
async fn nothing_unsolved_is_taken_for_solved() {
    check_cases(include_str!("cases/unsolved.txt")).await;
}

#[tokio::test]
async fn tests_as_they_are_written_work() {
    check_cases(include_str!("cases/solved.txt")).await;
}

#[tokio::test]
async fn unusable_tests_are_told_from_failed_solutions() {
    check_cases(include_str!("cases/unusable.txt")).await;
}

/// Where numpy is missing, tests that need it judge nobody, and say why.
#[tokio::test]
async fn arrays_are_judged_where_numpy_is_installed() {
    let sandboxes = here();
    let episode = episode(&sandboxes, &[]).await;
    let found = shell(&episode, "python3 -I -c 'import numpy' 2>/dev/null && echo found; true").await.1;
    let text = include_str!("cases/numpy.txt");
    if found == "found" {
        check_cases(text).await;
        return;
    }
    for case in cases(text) {
        let (expected, error) =
            ("unusable".to_owned(), "the tests need numpy, which is not installed".to_owned());
        assert_eq!(check_case(Case { expected, error, ..case }).await, Ok(Level::Unusable));
    }
}

/// A solution of whatever is asked: every name that is taken from it is what `made` says.
fn anybody(made: &str) -> String {
    format!(
        r"
class Any:
    def __init__(self, *a, **k): self.a = a
    def __getattr__(self, name):
        if name.startswith('__'): raise AttributeError(name)
        return lambda *a, **k: Any(*a)
    def __add__(self, o): return self
    __radd__ = __sub__ = __mul__ = __rmul__ = __getitem__ = __add__
    def __eq__(self, o): return True
    def __hash__(self): return 1
    def __iter__(self): return iter([self])
def fails(*a, **k): raise ModuleNotFoundError('numpy', name='numpy')
def record(*a, **k):
    from collections import namedtuple
    return namedtuple('R', ['a%d' % i for i in range(len(a))])(*a)
async def waits(*a, **k): return 1
def __getattr__(name):
    if name.startswith('__'): raise AttributeError(name)
    return {made}
"
    )
}

/// Whether tests can judge anybody is told before any solution is asked: none changes it, whatever it does.
#[tokio::test]
async fn what_a_solution_does_never_makes_tests_unusable() {
    use futures_util::StreamExt;
    let kinds = [
        "type(name, (Any,), {})",
        "fails",
        "lambda *a, **k: None",
        "lambda *a, **k: Any(*a)",
        "record",
        "waits",
        "5",
    ];
    let mut solutions: Vec<String> = kinds.iter().map(|made| anybody(made)).collect();
    solutions.extend(["", "def f(x", "import os\nos._exit(0)\n"].map(str::to_owned));
    let texts = [
        include_str!("cases/honest.txt"),
        include_str!("cases/hostile.txt"),
        include_str!("cases/solved.txt"),
        include_str!("cases/unsolved.txt"),
        include_str!("cases/unusable.txt"),
    ];
    let mut all: Vec<Case> = texts.into_iter().flat_map(cases).collect();
    all.dedup_by(|a, b| a.tests == b.tests);
    // Each text meets one of them, so that all meet many.
    let asked =
        all.into_iter().enumerate().map(|(idx, case)| (case, solutions[idx % solutions.len()].clone()));
    let wrong: Vec<String> = futures_util::stream::iter(asked)
        .map(|(case, solution)| check_usable(case, solution))
        .buffer_unordered(4)
        .filter_map(std::future::ready)
        .collect()
        .await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What does not fit where a case's modules are replaced by `solution`: its tests are as unusable as the case says.
async fn check_usable(case: Case, solution: String) -> Option<String> {
    let files = case.files.into_iter().map(|(path, text)| match path.ends_with(".py") {
        true => (path, solution.clone()),
        false => (path, text),
    });
    let is_unusable = case.expected == "unusable";
    let expected = if is_unusable { "unusable" } else { "0.1|0.2|1.0|undecided" };
    let error = if is_unusable { case.error } else { String::new() };
    check_case(Case { expected: expected.to_owned(), error, files: files.collect(), ..case }).await.err()
}

#[tokio::test]
async fn the_students_own_files_do_not_decide() {
    let cheat = "print('All tests passed!')\nimport os\nos._exit(0)\n";
    let files = [
        ("solution.py", "def fizzbuzz(n):\n    return []\n"),
        ("test_solution.py", cheat),
        ("tests.py", cheat),
        ("tests/test_all.py", cheat),
        ("conftest.py", cheat),
        ("sitecustomize.py", cheat),
        ("usercustomize.py", cheat),
        ("evil.pth", "import os; os._exit(0)\n"),
        ("json.py", cheat),
        ("ast.py", cheat),
        ("types.py", cheat),
        ("unittest.py", cheat),
        ("pytest.py", cheat),
    ];
    let report = verify(&files, &tests_of("fizzbuzz")).await;
    assert!(!report.is_solved(), "{report:#?}");
    // The same files beside a good solution change nothing either.
    let mut files = files;
    files[0].1 = SOLUTIONS[0].1;
    let report = verify(&files[..8], &tests_of("fizzbuzz")).await;
    assert!(report.is_solved(), "{report:#?}");
}

#[tokio::test]
async fn caches_are_not_believed() {
    let sandboxes = here();
    let episode = episode(&sandboxes, &[("solution.py", SOLUTIONS[0].1)]).await;
    let plant = "python3 -c \"import py_compile; py_compile.compile('solution.py', 'good.pyc', invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)\" && mkdir -p __pycache__ && cp good.pyc __pycache__/solution.cpython-311.pyc && cp good.pyc __pycache__/solution.cpython-312.pyc && cp good.pyc solution.pyc && echo 'def fizzbuzz(n): return []' > solution.py && echo planted";
    assert_eq!(shell(&episode, plant).await.1, "planted");
    let report = Verifier::new(&sandboxes, TIMEOUT).verify(&episode, &tests_of("fizzbuzz")).await.unwrap();
    assert_eq!(report.correctness(), Some(0.2), "{report:#?}");
}

/// Writes a higher number into its file again and again, until it is killed.
const BEATING: &str = r"
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
name, beat = sys.argv[1], 0
while True:
    beat += 1
    with open(name + '.new', 'w') as file:
        file.write(str(beat))
    os.rename(name + '.new', name)
    if beat == 1:
        print('ready', flush=True)
";

/// A process that changes files once the episode has ended: it is dead before they are copied, so what the tests see
/// is the last that it ever wrote.
#[tokio::test]
async fn nothing_of_the_episode_lives_on_to_rewrite_files() {
    let sandboxes = here();
    for _ in 0..3 {
        let solution = "print('beats', open('one').read(), open('two').read())\ndef fizzbuzz(n): pass\n";
        let episode = episode(&sandboxes, &[("solution.py", solution), ("beating.py", BEATING)]).await;
        let line = "setsid python3 beating.py one & exec python3 beating.py two";
        let id = episode.start_background(Command::shell(line)).await.unwrap();
        // What they print may be mixed up.
        while episode.poll_background(id).unwrap().capture.text().matches("ready").count() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let report =
            Verifier::new(&sandboxes, TIMEOUT).verify(&episode, &tests_of("fizzbuzz")).await.unwrap();
        let last = |name: &str| String::from_utf8(episode.workspace().read(name, 99).unwrap().bytes).unwrap();
        let beats = format!("beats {} {}\n", last("one"), last("two"));
        assert!(report.output.contains(&beats), "not {beats:?}: {report:#?}");
    }
}

/// Three times 700 directories in each other.
const DEEP: &str = "python3 -c \"import os\nfor c in 'abc': os.makedirs('/'.join([c] * 700))\"";

/// Whatever lies beside a solution, it is found and judged; where not all of it could be looked at, that is told.
#[tokio::test]
async fn other_files_do_not_decide() {
    let sandboxes = here();
    let (all, left) = ("", "files were not copied for the tests");
    let cases = [
        ("true", all),
        ("for i in $(seq 40); do truncate -s 200M hole$i; done; ln -s /etc/passwd link; mkfifo pipe", left),
        ("mkdir n; cd n; python3 -c \"for i in range(25000): open(str(i), 'w')\"", left),
        ("mkdir n; cd n; python3 -c \"for i in range(25000): open(f'{i}.py', 'w')\"", left),
        ("mkdir -p .venv/lib; cd .venv/lib; python3 -c \"for i in range(25000): open(str(i), 'w')\"", all),
        (DEEP, "there are more files and directories than are looked through for the tests"),
        ("mv solution.py s.py; ln -s /workspace/s.py solution.py", all),
        ("mkdir real; mv solution.py real/s.py; ln -s real/s.py solution.py", all),
        ("mkdir real; mv solution.py real/__init__.py; ln -s /workspace/real solution", all),
        ("mkdir solution; mv solution.py solution/__init__.py", all),
    ];
    for (line, told) in cases {
        let episode = episode(&sandboxes, &[("solution.py", SOLUTIONS[0].1)]).await;
        assert_eq!(shell(&episode, line).await, (Exit::Code(0), String::new()));
        let report =
            Verifier::new(&sandboxes, TIMEOUT).verify(&episode, &tests_of("fizzbuzz")).await.unwrap();
        assert_eq!(report.correctness(), Some(1.0), "{line}: {report:#?}");
        let tells = report.output.lines().find(|it| it.ends_with(" for the tests")).unwrap_or("");
        assert!(tells.ends_with(told) && tells.is_empty() == told.is_empty(), "{line}: {report:#?}");
    }
}

#[tokio::test]
async fn a_long_report_arrives() {
    let literal = "😀".repeat(140);
    let lines: String = (0..500).map(|_| format!("assert same('{literal}') == '{literal}'\n")).collect();
    let tests = format!("from solution import same\n{lines}");
    let solved = solve("def same(x): return x\n", &tests).await;
    assert_eq!((solved.n_passed, solved.correctness()), (500, Some(1.0)), "{:?}", solved.error);
    assert!(!solved.assertions.is_empty());
    let failed = solve("def same(x): return x + x\n", &tests).await;
    assert_eq!((failed.n_failed, failed.correctness()), (500, Some(0.2)), "{:?}", failed.error);
}

/// What is tested, a right solution, and the tests.
const KINDS: [(&str, &str, &str); 10] = [
    (
        "in place",
        "def f(x, d=None):\n    x.sort()\n    if d is not None: d['k'] = [1]\n",
        "from solution import f\nx, inner = [3, 1], [2]\nf(x)\nassert x == [1, 3]\nd = {}\nf([], d=d)\nassert d == {'k': [1]}\n",
    ),
    (
        "exceptions",
        "class Bad(ValueError): pass\ndef f(x):\n    if x < 0: raise Bad('neg', x)\n    return {}[x]\n",
        "from solution import f, Bad\ntry:\n    f(-1)\n    assert False\nexcept Bad as e:\n    assert e.args == ('neg', -1)\ntry:\n    f(1)\n    assert False\nexcept KeyError:\n    assert True\n",
    ),
    (
        "types",
        "def f(x): return x\n",
        "from solution import *\nimport math\nfor x in [None, True, 10**5000, 1.5, 'é\\ud800', b'x', (1, [2]), {1, 2}, frozenset([1]), {(1, 2): 'a'}, 1j, range(3), float('inf')]:\n    assert f(x) == x and type(f(x)) is type(x)\nassert math.isnan(f(float('nan')))\n",
    ),
    (
        "functions",
        "def apply(g, xs): return [g(x) for x in xs]\ndef adder(n): return lambda x: x + n\n",
        "import solution\nassert solution.apply(lambda x: x * 2, [1, 2]) == [2, 4]\nassert solution.apply(str, [1]) == ['1']\nadd = solution.adder(3)\nassert add(4) == 7\n",
    ),
    (
        "generators",
        "def count(n):\n    i = 0\n    while i < n:\n        yield i\n        i += 1\n",
        "from solution import count\nassert list(count(3)) == [0, 1, 2]\nassert sum(count(4)) == 6\n",
    ),
    (
        "classes",
        "class Stack:\n    def __init__(self, items=()): self.items = list(items)\n    def push(self, x): self.items.append(x)\n    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)\n    def __contains__(self, x): return x in self.items\n    def __iter__(self): return iter(self.items)\n    def copy(self): return Stack(self.items)\n    @classmethod\n    def of(cls, *items): return cls(items)\n",
        "from solution import Stack\ns = Stack()\ns.push(1); s.push(2)\nassert len(s) == 2 and 2 in s and list(s) == [1, 2]\nassert isinstance(s, Stack)\nt = s.copy()\nassert t.pop() == 2 and len(s) == 2\nassert Stack.of(7, 8).items == [7, 8]\ntry:\n    Stack().pop()\n    assert False\nexcept IndexError:\n    assert True\n",
    ),
    (
        "modules",
        "from helper import one\ndef two(): return one() + 1\n",
        "import solution, helper\nfrom pkg.inner import three\nassert solution.two() == 2 and helper.one() == 1 and three() == 3\n",
    ),
    (
        "test functions",
        "def f(x): return x\n",
        "import pytest\nfrom solution import f\ndef test_one():\n    assert f(1) == 1\n@pytest.mark.parametrize('a,b', [(1, 1), (2, 2)])\ndef test_many(a, b):\n    assert f(a) == b\nclass TestMore:\n    def test_it(self):\n        assert f(0.1 + 0.2) == pytest.approx(0.3)\ndef test_raises():\n    with pytest.raises(TypeError):\n        f()\n",
    ),
    (
        "unittest",
        "def f(x): return x\n",
        "import unittest\nfrom solution import f\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(f(1), 1)\n    def test_b(self):\n        with self.assertRaises(TypeError): f()\nif __name__ == '__main__':\n    unittest.main()\n",
    ),
    (
        "a check function",
        "def f(x): return x\n",
        "from solution import f\ndef check(candidate):\n    assert candidate(1) == 1\n    assert all(candidate(i) == i for i in range(5))\ncheck(f)\n",
    ),
];

#[tokio::test]
async fn many_kinds_of_tests_work() {
    for (what, solution, tests) in KINDS {
        let files = [
            ("solution.py", solution),
            ("helper.py", "def one(): return 1\n"),
            ("pkg/__init__.py", ""),
            ("pkg/inner.py", "def three(): return 3\n"),
        ];
        let sandboxes = here();
        let episode = episode(&sandboxes, &files).await;
        let verifier = Verifier::new(&sandboxes, TIMEOUT).of_task("modules `helper` and `pkg`");
        let report = verifier.verify(&episode, tests).await.unwrap();
        assert!(report.is_solved(), "{what}: {report:#?}");
    }
}

#[tokio::test]
async fn kinds_of_tests_can_fail() {
    let cases = [
        (
            "def f(x): return 0\n",
            "from solution import f\ndef test_one():\n    assert f(1) == 1\ndef test_two():\n    assert f(0) == 0\n",
            (1, 1),
        ),
        (
            "def f(x): return 0\n",
            "import unittest\nfrom solution import f\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(f(1), 1)\n    def test_b(self): self.assertEqual(f(0), 0)\nunittest.main()\n",
            (1, 1),
        ),
        (
            "def f(x): return 0\n",
            "import pytest\nfrom solution import f\nwith pytest.raises(ValueError):\n    f(1)\n",
            (0, 1),
        ),
        (
            "def f(x): return 0\n",
            "from solution import f\ndef check(c):\n    assert c(1) == 1\n    assert c(2) == 2\ncheck(f)\n",
            (0, 1),
        ),
    ];
    for (solution, tests, expected) in cases {
        let report = solve(solution, tests).await;
        assert_eq!(
            ((report.n_passed, report.n_failed), report.correctness()),
            (expected, Some(0.2)),
            "{tests}: {report:#?}"
        );
    }
}
