//! What is read from the ends of a conversation is what whole renderings give, at the cost of what is new.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::ops::Range;
use std::path::{Path, PathBuf};

use backsight_chat::error::TextError;
use backsight_chat::messages::{ArgumentForm, list_from_json, to_json_with};
use backsight_chat::near::Likeness;
use backsight_chat::reread::{Manner, Shown};
use backsight_chat::spans::{self, Reread, Wanted};
use backsight_chat::talk::{Portion, Talk};
use backsight_chat::template::{Now, Template};
use backsight_chat::tokenizer::Tokenizer;
use backsight_core::episode::{Message, Role};
use backsight_core::lens::Edit;
use backsight_core::tokens::TokenId;
use backsight_core::tree::TokenTree;
use serde_json::{Map, Value, json};

const PLAIN: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// Thinking is shown behind the last question only, and the last turn always has a place for it.
const THINKS: &str = "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or m.reasoning_content) %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// Thinking is forgotten as soon as there is an answer without a call.
const FORGETS: &str = "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'assistant' and not m.tool_calls %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content and loop.index0 > ns.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// Messages are numbered; and something changes in front, or at the end, once there are many.
const COUNTS: &str = "{% for m in messages %}<|im_start|>{{ m.role }} {{ loop.index }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {{ messages | length + 1 }}\n{% endif %}";
const LATE: &str = "{% if messages | length > 50 %}long{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const HURRIES: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% if messages | length > 50 %}be quick: {% endif %}{% endif %}";

fn tokenizer() -> Tokenizer {
    Tokenizer::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokenizers/chatml"))
        .unwrap()
}

/// A conversation of so many rounds: calls with thinking and without, several results, answers, questions.
fn mixed(n_rounds: usize) -> Vec<Message> {
    let mut all =
        vec![json!({"role": "system", "content": "Be brief."}), json!({"role": "user", "content": "Go."})];
    for n in 0..n_rounds {
        let call = json!([{"id": format!("call0000{}", n % 10), "type": "function", "function": {"name": "look", "arguments": {"at": n}}}]);
        let result = json!({"role": "tool", "name": "look", "tool_call_id": format!("call0000{}", n % 10), "content": format!("saw {n}")});
        let said = format!("words {n}");
        match n % 8 {
            0 | 4 => all.extend([json!({"role": "assistant", "content": "", "reasoning_content": format!("hm {n}"), "tool_calls": call}), result]),
            1 | 2 => all.extend([json!({"role": "assistant", "content": said, "tool_calls": call}), result]),
            3 => all.extend([json!({"role": "assistant", "content": said, "reasoning_content": "well"}), json!({"role": "user", "content": "more"})]),
            5 => all.extend([json!({"role": "assistant", "content": format!("<think>so {n}</think>{said}")}), json!({"role": "user", "content": "ok"})]),
            _ => all.extend([json!({"role": "assistant", "content": "same words"}), json!({"role": "user", "content": "ok"})]),
        }
    }
    list_from_json(&Value::Array(all)).unwrap()
}

/// Answers and questions in turn.
fn talk(n_rounds: usize) -> Vec<Message> {
    let role = |idx: usize| if idx.is_multiple_of(2) { Role::User } else { Role::Assistant };
    (0..2 * n_rounds).map(|idx| Message::text(role(idx), format!("words {idx}"))).collect()
}

/// Every action under nothing, a text in the first question, and one in the last message before it.
fn wanted(messages: &[Message]) -> Vec<(usize, Vec<Edit<'static>>)> {
    let actions = (0..messages.len()).filter(|idx| messages[*idx].role == Role::Assistant);
    let first = messages.iter().position(|it| it.role == Role::User).unwrap();
    let edits = |action| {
        vec![
            Edit::Behind { target: first, text: "it went" },
            Edit::Behind { target: action - 1, text: "well" },
            Edit::Nothing,
        ]
    };
    actions.map(|action| (action, edits(action))).collect()
}

type Seen = Result<(spans::Border, Vec<TokenId>, Vec<Result<Vec<TokenId>, String>>), String>;

fn seen(found: Reread, tree: &TokenTree) -> Vec<Seen> {
    let of = |(turn, others): spans::RereadTurn| {
        let own = tree.tokens(found.sequences[turn.sequence], 0..turn.span.end());
        let others = others.into_iter().map(|it| it.map(|tip| tree.all(tip)).map_err(|why| why.to_string()));
        (turn.border, own, others.collect())
    };
    found.turns.into_iter().map(|turn| turn.map(of).map_err(|why| why.to_string())).collect()
}

/// Renders whole conversations only.
fn whole(shown: &Shown<'_>, wanted: &[(usize, Vec<Edit<'static>>)], tokenizer: &Tokenizer) -> Vec<Seen> {
    let asked: Vec<Wanted<'_>> = wanted
        .iter()
        .map(|(action, edits)| (*action, edits.iter().map(|edit| (*edit, 0)).collect()))
        .collect();
    let mut tree = TokenTree::default();
    let found = spans::reread(&asked, &Likeness::default(), &mut &*shown, tokenizer, &mut tree);
    seen(found, &tree)
}

/// Whether the template takes the conversation.
fn check(source: &str, name: &str, messages: &[Message], tokenizer: &Tokenizer) -> bool {
    let Ok(template) = Template::compile(source, name) else { return false };
    let vars = json!({"bos_token": "<s>", "eos_token": "</s>"}).as_object().unwrap().clone();
    let manner =
        Manner { template: &template, vars: &vars, tools: &[], tool_text: None, now: Some(Now::utc(0)) };
    let Ok(shown) = Shown::new(manner, messages) else { return false };
    let (asked, mut tree) = (wanted(messages), TokenTree::default());
    let found = seen(shown.reread(&asked, tokenizer, &mut tree), &tree);
    for (nth, (found, whole)) in found.iter().zip(whole(&shown, &asked, tokenizer)).enumerate() {
        // What the whole conversation shows of an action is told apart from how it is found.
        let is_lost = found.as_ref().is_err_and(|why| why.contains("leaves out"));
        assert!(is_lost || *found == whole, "{name}: action {nth}: {found:?} is not {whole:?}");
    }
    true
}

#[test]
fn the_end_of_a_conversation_tells_what_the_whole_does() {
    let tokenizer = tokenizer();
    for (name, source) in [
        ("plain", PLAIN),
        ("counts", COUNTS),
        ("late", LATE),
        ("hurries", HURRIES),
        ("thinks", THINKS),
        ("forgets", FORGETS),
    ] {
        assert!(check(source, name, &talk(70), &tokenizer), "{name}");
    }
    for (name, source) in [("thinks", THINKS), ("forgets", FORGETS)] {
        assert!(check(source, name, &mixed(70), &tokenizer), "{name}");
    }
}

#[test]
fn so_it_does_with_published_templates() {
    let Some(root) = std::env::var_os("BACKSIGHT_CASES") else { return };
    let entries = std::fs::read_dir(Path::new(&root).join("chat_templates/templates")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|it| it.unwrap().path()).collect();
    paths.sort();
    let (tokenizer, mut n_checked) = (tokenizer(), 0);
    for path in paths {
        let (source, name) = (std::fs::read_to_string(&path).unwrap(), path.display().to_string());
        for messages in [talk(24), mixed(24)] {
            n_checked += usize::from(check(&source, &name, &messages, &tokenizer));
        }
    }
    assert!(n_checked > 60);
}

/// Counts the bytes that templates write.
struct Counting<T>(T, usize);

impl<T: Talk> Talk for Counting<T> {
    fn render(&mut self, portion: Portion<'_>, without: &Range<usize>) -> Result<String, TextError> {
        let text = self.0.render(portion, without)?;
        self.1 += text.len();
        Ok(text)
    }

    fn edited(&mut self, idx: usize, edit: Edit<'_>, without: &Range<usize>) -> Result<String, TextError> {
        let text = self.0.edited(idx, edit, without)?;
        self.1 += text.len();
        Ok(text)
    }
}

/// Bytes rendered, bytes encoded and tokens kept for so many steps.
fn work(source: &str, n_steps: usize, tokenizer: &Tokenizer) -> [usize; 3] {
    let (template, messages, vars) = (Template::compile(source, "t").unwrap(), talk(n_steps), Map::new());
    let manner = Manner { template: &template, vars: &vars, tools: &[], tool_text: None, now: None };
    let shown = Shown::new(manner, &messages).unwrap();
    let round = |edit: &Edit<'_>| match edit {
        Edit::Behind { target, .. } => target / 2,
        _ => 0,
    };
    let asked = wanted(&messages);
    let asked: Vec<Wanted<'_>> = asked
        .iter()
        .map(|(action, edits)| (*action, edits.iter().map(|it| (*it, round(it))).collect()))
        .collect();
    let json: Vec<Value> = messages.iter().map(|it| to_json_with(it, ArgumentForm::Object)).collect();
    let (mut talk, mut tree) = (Counting(&shown, 0), TokenTree::default());
    let found = spans::reread(&asked, &Likeness::of(source, &json), &mut talk, tokenizer, &mut tree);
    assert!(found.turns.iter().all(Result::is_ok));
    [talk.1, found.encoded_bytes as usize, tree.n_kept()]
}

#[test]
fn twice_the_steps_are_twice_the_work() {
    let tokenizer = tokenizer();
    for source in [PLAIN, THINKS] {
        let [few, more] = [400, 800].map(|n_steps| work(source, n_steps, &tokenizer));
        for (few, more) in few.into_iter().zip(more) {
            assert!(10 * more <= 22 * few, "{few} and then {more}");
        }
    }
}
