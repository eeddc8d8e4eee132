//! Chat templates against what transformers' `apply_chat_template` made of the same input.
//!
//! Our own templates and expressions are always compared; the recorded renderings of real models'
//! templates only where `BACKSIGHT_CASES` names the directory that holds them.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]
#![expect(clippy::print_stdout, reason = "the score is for a person to read")]

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use backsight_chat::error::TextError;
use backsight_chat::template::{Now, RenderInput, Rendered, Template};
use serde_json::{Map, Value};

/// Recorded cases that render differently: template, conversation and the reason. Empty: all are equal.
const DIFFERENT: &[(&str, &str, &str)] = &[];
/// Recorded cases that raise in Python and render here. Empty: all are refused.
const LENIENT: &[(&str, &str, &str)] = &[];
/// What no known template asks for: refused by name, never rendered differently.
const UNSUPPORTED: &[&str] = &[
    "**",
    "\\é",
    "%",
    "{:",
    "{!r}",
    "{a[k]}",
    "abs",
    "attr",
    "batch",
    "callable",
    "casefold",
    "center",
    "copy",
    "count",
    "cycler",
    "default=",
    "dict",
    "expandtabs",
    "find",
    "float",
    "forceescape",
    "groupby",
    "index",
    "int",
    "isalpha",
    "isdigit",
    "isidentifier",
    "isspace",
    "istitle",
    "isupper",
    "joiner",
    "ljust",
    "lower",
    "partition",
    "rjust",
    "round",
    "slice",
    "sum",
    "swapcase",
    "truncate",
    "upper",
    "wordcount",
    "zfill",
];

fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/templates").join(name)
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The spans in characters, as Python counts them.
fn in_chars(text: &str, spans: &[Range<usize>]) -> Vec<(usize, usize)> {
    let chars = |at: usize| text[..at].chars().count();
    spans.iter().map(|span| (chars(span.start), chars(span.end))).collect()
}

fn recorded_spans(spans: &Value) -> Vec<(usize, usize)> {
    let spans = spans.as_array().map_or(&[][..], Vec::as_slice);
    let number = |it: &Value| it.as_u64().unwrap() as usize;
    spans.iter().map(|span| (number(&span[0]), number(&span[1]))).collect()
}

/// What is wrong with a rendering, if anything.
fn difference(rendered: &Rendered, expected: &str, spans: Option<&Value>) -> Option<String> {
    if rendered.text != expected {
        return Some(format!("rendered {:?}\nexpected {expected:?}", rendered.text));
    }
    let found = in_chars(&rendered.text, &rendered.generation);
    let wanted = recorded_spans(spans?);
    (found != wanted).then(|| format!("generation spans {found:?}, expected {wanted:?}"))
}

#[test]
fn own_templates_render_as_transformers_does() {
    let inputs = read_json(&own("inputs.json"));
    let cases = read_json(&own("cases.json"));
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 250, "only {} cases", cases.len());
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let source = fs::read_to_string(own(name)).unwrap();
        let tools = inputs["tools"].as_array().unwrap().as_slice();
        let result = Template::compile(&source, name).and_then(|template| {
            template.render(&RenderInput {
                messages: inputs["conversations"][case["conversation"].as_str().unwrap()].as_array().unwrap(),
                tools: case["tools"].as_bool().unwrap().then_some(tools),
                add_generation_prompt: case["prompt"].as_bool().unwrap(),
                vars: inputs["variables"].as_object().unwrap(),
                now: Some(Now::utc(case["now"].as_i64().unwrap())),
            })
        });
        let wrong = match (&result, case["expected"].as_str()) {
            (Ok(rendered), Some(expected)) => difference(rendered, expected, Some(&case["generation"])),
            (Err(error), Some(_)) => Some(error.to_string()),
            (Ok(rendered), None) => {
                Some(format!("rendered {:?}, expected {}", rendered.text, case["raises"]))
            }
            (Err(error), None) => own_words_lost(error, case["raises"].as_str().unwrap()),
        };
        assert_eq!(wrong, None, "{case}");
    }
}

/// An error must carry what the template itself says.
fn own_words_lost(error: &TextError, raised: &str) -> Option<String> {
    let own_words = raised.strip_prefix("TemplateError: ")?;
    let said = error.to_string();
    let is_carried =
        said.split_once(": the template refuses this conversation: ").is_some_and(|(place, said)| {
            let line = place.rsplit_once(": line ").map(|(_, line)| line.parse::<usize>());
            line.is_some_and(|line| line.is_ok()) && said == own_words
        });
    (!is_carried).then(|| format!("{error}, expected {own_words}"))
}

#[test]
fn expressions_mean_what_they_mean_in_python() {
    let inputs = read_json(&own("inputs.json"));
    let cases = read_json(&own("expressions.json"));
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 5000, "only {} cases", cases.len());
    let (mut wrong, mut n_refused) = (Vec::new(), 0);
    for case in cases {
        let expression = case[0].as_str().unwrap();
        let result =
            Template::compile(&format!("{{{{ {expression} }}}}"), "expression").and_then(|template| {
                let vars = inputs["values"].as_object().unwrap();
                template.render(&RenderInput {
                    messages: &[],
                    tools: None,
                    add_generation_prompt: false,
                    vars,
                    now: None,
                })
            });
        let found = result.as_ref().map(|rendered| rendered.text.as_str());
        if found.ok() == case[1].as_str() {
            continue;
        }
        if result.as_ref().is_err_and(|error| is_refused_by_name(expression, error)) {
            n_refused += 1;
        } else {
            wrong.push(format!("{expression}: {found:?}, expected {}", case[1]));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert_eq!(n_refused, 380, "expressions that Python evaluates and that are refused here");
}

fn is_refused_by_name(expression: &str, error: &TextError) -> bool {
    let error = error.to_string();
    UNSUPPORTED.iter().any(|name| expression.contains(name) && error.contains(name))
}

/// What no known template writes outside expressions, or as an argument, is refused by name too.
#[test]
fn what_no_known_template_uses_is_refused_by_name() {
    let cases = [
        ("{% with a = 1 %}{% endwith %}", "with"),
        ("{% call m() %}{% endcall %}", "call"),
        ("{% block b %}{% endblock %}", "block"),
        ("{% include 'a' %}", "include"),
        ("{% print 1 %}", "print"),
        ("{%- raw %}{{ # }}{% endraw %}", "raw"),
        ("{% autoescape true %}{% endautoescape %}", "autoescape"),
        ("{% for x in [1] recursive %}{% endfor %}", "recursive"),
        ("{{ 0x1F }}", "x1F"),
        ("{{ 1_000 }}", "_000"),
        ("{{ strftime_now('%d %Z') }}", "%Z"),
        ("{{ strftime_now('%-c') }}", "%-c"),
        ("{{ strftime_now('%') }}", "%"),
    ];
    for (source, name) in cases {
        let vars = Map::new();
        let now = Some(Now::utc(0));
        let input =
            RenderInput { messages: &[], tools: None, add_generation_prompt: false, vars: &vars, now };
        let result = Template::compile(source, "t").and_then(|template| template.render(&input));
        let error = result.unwrap_err().to_string();
        assert!(error.contains(name), "{source}: {error}");
    }
}

/// The recorded cases, wherever the variable points: at their directory or the one above it.
fn recorded() -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("BACKSIGHT_CASES")?);
    [dir.join("chat_templates"), dir].into_iter().find(|dir| dir.join("cases.jsonl").is_file())
}

fn render_recorded(template: &Template, case: &Value, inputs: &Value) -> Result<Rendered, TextError> {
    let tools = inputs["tools"].as_array().unwrap().as_slice();
    template.render(&RenderInput {
        messages: inputs["conversations"][case["conversation"].as_str().unwrap()].as_array().unwrap(),
        tools: case["tools"].as_bool().unwrap().then_some(tools),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
        vars: case["context"].as_object().unwrap_or(&Map::new()),
        // Some templates ask for the time without printing it in these conversations.
        now: Some(Now::utc(0)),
    })
}

/// How many of the cases with an expectation meet it.
#[derive(Default)]
struct Score {
    n_met: usize,
    n_all: usize,
    missed: Vec<String>,
}

impl Score {
    fn count(&mut self, case: &Value, wrong: Option<String>, known: &[(&str, &str, &str)]) {
        self.n_all += 1;
        let Some(wrong) = wrong else {
            self.n_met += 1;
            return;
        };
        let [template, conversation] = ["template", "conversation"].map(|key| case[key].as_str().unwrap());
        let reason =
            known.iter().find(|(it, of, _)| (*it, *of) == (template, conversation)).map(|(_, _, why)| *why);
        self.missed
            .push(format!("{template} on {conversation}: {}: {wrong}", reason.unwrap_or("NO REASON KNOWN")));
    }

    fn share(&self) -> f64 {
        self.n_met as f64 / self.n_all as f64
    }
}

#[test]
fn recorded_cases_render_as_transformers_does() {
    let Some(dir) = recorded() else {
        println!("templates: skipped, BACKSIGHT_CASES does not name a directory with recorded cases");
        return;
    };
    let inputs = read_json(&dir.join("inputs.json"));
    let mut templates: HashMap<String, Template> = HashMap::new();
    let (mut rendering, mut raising) = (Score::default(), Score::default());
    for line in fs::read_to_string(dir.join("cases.jsonl")).unwrap().lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let name = case["template"].as_str().unwrap();
        let template = templates.entry(name.to_owned()).or_insert_with(|| {
            let source = fs::read_to_string(dir.join("templates").join(name)).unwrap();
            Template::compile(&source, name).unwrap()
        });
        let result = render_recorded(template, &case, &inputs);
        if case["raises"].as_bool().unwrap() {
            let wrong = result.ok().map(|rendered| format!("rendered {:?}", rendered.text));
            raising.count(&case, wrong, LENIENT);
            continue;
        }
        let spans = Some(&case["generation_spans"]).filter(|it| !it.is_null());
        let wrong = match result {
            Ok(rendered) => difference(&rendered, case["expected"].as_str().unwrap(), spans),
            Err(error) => Some(error.to_string()),
        };
        rendering.count(&case, wrong, DIFFERENT);
    }
    println!(
        "templates: {} of {} rendering cases equal ({:.2} %), {} of {} raising cases refused",
        rendering.n_met,
        rendering.n_all,
        100.0 * rendering.share(),
        raising.n_met,
        raising.n_all
    );
    let missed = [rendering.missed.as_slice(), raising.missed.as_slice()].concat();
    println!("{}", missed.join("\n"));
    assert!(rendering.share() >= 0.99 && raising.share() >= 0.9, "too many cases differ");
    assert!(missed.iter().all(|it| !it.contains("NO REASON KNOWN")), "a case differs without a reason");
}
