//! Chat templates against what transformers' `apply_chat_template` gave for the same input.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]
#![expect(clippy::print_stdout, reason = "the score is for a person to read")]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use backsight::chat::template::{RenderInput, Rendered, Template, TemplateError};
use serde_json::{Map, Value};

/// Cases that render differently, each with the reason.
const DIFFERENT: &[(&str, &str, &str)] = &[];

struct Case {
    template: String,
    conversation: String,
    tools: bool,
    raw: Value,
}

impl Case {
    fn name(&self) -> String {
        let prompt = self.raw["add_generation_prompt"].as_bool().unwrap();
        format!("{} {} tools={} prompt={prompt}", self.template, self.conversation, self.tools)
    }

    fn render(&self, template: &Template, inputs: &Value) -> Result<Rendered, TemplateError> {
        let messages = inputs["conversations"][&self.conversation].as_array().unwrap();
        let tools = inputs["tools"].as_array().unwrap();
        template.render(&RenderInput {
            messages,
            tools: self.tools.then_some(tools.as_slice()),
            add_generation_prompt: self.raw["add_generation_prompt"].as_bool().unwrap(),
            vars: self.raw["context"].as_object().unwrap_or(&Map::new()),
            now: None,
        })
    }
}

/// The recorded cases, wherever the variable points: at the directory or the one above it.
fn recorded() -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("BACKSIGHT_CASES")?);
    [dir.join("chat_templates"), dir].into_iter().find(|dir| dir.join("cases.jsonl").is_file())
}

fn read_cases(dir: &Path) -> Vec<Case> {
    let text = fs::read_to_string(dir.join("cases.jsonl")).unwrap();
    let cases = text.lines().map(|line| {
        let raw: Value = serde_json::from_str(line).unwrap();
        Case {
            template: raw["template"].as_str().unwrap().to_owned(),
            conversation: raw["conversation"].as_str().unwrap().to_owned(),
            tools: raw["tools"].as_bool().unwrap(),
            raw,
        }
    });
    cases.collect()
}

#[test]
fn recorded_cases_render_as_transformers_does() {
    let Some(dir) = recorded() else {
        println!("skipped: BACKSIGHT_CASES does not name a directory of recorded cases");
        return;
    };
    let inputs: Value = serde_json::from_str(&fs::read_to_string(dir.join("inputs.json")).unwrap()).unwrap();
    let mut templates: HashMap<String, Template> = HashMap::new();
    let (mut n_equal, mut n_render, mut n_refused, mut n_raise) = (0, 0, 0, 0);
    for case in read_cases(&dir) {
        let template = templates.entry(case.template.clone()).or_insert_with(|| {
            let source = fs::read_to_string(dir.join("templates").join(&case.template)).unwrap();
            match Template::compile(&source, &case.template) { Ok(t) => t, Err(e) => { println!("COMPILE {e}"); Template::compile("{{ raise_exception('no') }}", "x").unwrap() } }
        });
        let result = case.render(template, &inputs);
        if case.raw["raises"].as_bool().unwrap() {
            n_raise += 1;
            if let Ok(r) = &result { println!("RENDERED {} {:?}", case.name(), &r.text.chars().take(10).collect::<String>()); }
            n_refused += usize::from(result.is_err());
        } else {
            n_render += 1;
            let want = case.raw["expected"].as_str().unwrap();
            match &result {
                Ok(r) if r.text == want => n_equal += 1,
                Ok(r) => { let at = r.text.char_indices().zip(want.chars()).find(|((_, a), b)| a != b).map(|((i, _), _)| i).unwrap_or(0);
                    println!("DIFF {} at {at}\n   got  {:?}\n   want {:?}", case.name(), r.text.get(at.saturating_sub(0)..).unwrap_or("").chars().take(80).collect::<String>(), want.get(at..).unwrap_or("").chars().take(80).collect::<String>()) }
                Err(e) => println!("ERR {} {e}", case.name()),
            }
        }
    }
    println!("templates: {n_equal} of {n_render} rendering cases equal, {n_refused} of {n_raise} raising cases refused");
}
