//! Every number is the one that scoring each step alone gives, whatever the plan, the server and the template.

use std::ops::Range;

use backsight::chat::messages::{ArgumentForm, to_json_with};
use backsight::chat::render::render_conversation;
use backsight::chat::template::RenderInput;
use backsight::chat::tokenizer::Tokenizer;
use backsight::credit::hcapo::mean_logprob;
use backsight::episode::{Episode, Message, ToolText};
use backsight::lens::{OUTCOME_TEMPLATE, OutcomeFacts, Placement, Wording};
use backsight::store::load_directory;
use backsight::subtasks::{PlanPlaces, places};
use backsight::tokens::{Logprob, TokenId};
use serde_json::{Value, json};

use crate::credit::place::{FORGETS, KEEPS, Place, sglang, vllm};
use crate::support::lenses::inject;
use crate::support::stand_in::StandIn;
use crate::support::toy::Toy;

/// A step as it is scored alone: nothing incremental, nothing shared.
pub struct Alone {
    pub context: Vec<TokenId>,
    pub action: Vec<TokenId>,
}

impl Alone {
    pub fn tokens(&self) -> Vec<TokenId> {
        [&self.context[..], &self.action].concat()
    }

    pub fn mean(&self, toy: Toy) -> f64 {
        let logprobs = toy.logprobs(&self.tokens()).split_off(self.context.len());
        mean_logprob(logprobs.into_iter().map(|it| it.map(|it| Logprob::new(it).unwrap()))).unwrap()
    }
}

fn rendered(
    place: &Place,
    messages: &[Message],
    add_generation_prompt: bool,
    tool_text: Option<ToolText>,
) -> String {
    let templates = place.templates();
    let json = |message: &Message| {
        let mut json = to_json_with(message, ArgumentForm::Object);
        json["content"] = json["content"].as_str().unwrap_or("").into();
        json
    };
    let messages: Vec<Value> = messages.iter().map(json).collect();
    let vars = templates.special_tokens();
    let input = RenderInput { messages: &messages, tools: None, add_generation_prompt, vars, now: None };
    render_conversation(&templates.select(false).unwrap(), &input, tool_text).unwrap().rendered.text
}

/// The lens of each step of an episode, in our words or others.
pub fn lens_texts(episode: &Episode, words: &str) -> Vec<String> {
    let PlanPlaces { steps, completed } =
        places(&episode.messages, &episode.failed_results, &episode.progress);
    let (template, reward) = (Wording::parse(words).unwrap(), episode.outcome.as_ref().unwrap().reward);
    let facts = |place| OutcomeFacts::new(reward, &episode.progress, completed, place);
    steps.iter().map(|place| template.render(&facts(place)).unwrap()).collect()
}

/// Each step of an episode alone, with a lens or without.
pub fn alone(place: &Place, name: &str, placement: Option<Placement>, words: &str) -> Vec<Alone> {
    alone_without(place, name, placement, words, None, &|_| 0..0)
}

/// The same with some messages left out before a step.
fn alone_without(
    place: &Place,
    name: &str,
    placement: Option<Placement>,
    words: &str,
    tool_text: Option<ToolText>,
    dropped: &dyn Fn(usize) -> Range<usize>,
) -> Vec<Alone> {
    let tokenizer = place.tokenizer();
    let episode = load_directory(&place.path(&format!("episodes/{name}"))).unwrap().episode;
    let texts = lens_texts(&episode, words);
    let step = |(idx, step): (usize, &backsight::episode::Step)| {
        let (before, rest) = episode.messages.split_at(step.message_idx);
        let dropped = dropped(idx);
        let before = [&before[..dropped.start], &before[dropped.end..]].concat();
        let seen = placement.map_or(before.clone(), |it| inject(&before, &texts[idx], it).unwrap());
        let encode = |text: &str| tokenizer.encode(text).unwrap().ids;
        let prompt = rendered(place, &before, true, tool_text);
        let full = rendered(place, &[&before[..], &rest[..1]].concat(), false, tool_text);
        let action = full.strip_prefix(&prompt).unwrap().strip_suffix('\n').unwrap();
        Alone { context: encode(&rendered(place, &seen, true, tool_text)), action: encode(action) }
    };
    episode.steps().iter().enumerate().map(step).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Compares every mean of an episode with the step alone; gives the number of steps.
fn check_means(place: &Place, name: &str, placement: Placement, with_plain: bool) -> usize {
    let toy = Toy { weights: 1 };
    let scores = place.scores(name);
    let steps = scores["steps"].as_array().unwrap();
    let lens = alone(place, name, Some(placement), OUTCOME_TEMPLATE);
    let plain = alone(place, name, None, OUTCOME_TEMPLATE);
    assert_eq!(steps.len(), lens.len());
    for (step, (lens, plain)) in steps.iter().zip(lens.iter().zip(&plain)) {
        assert_eq!(number(&step["mean_logprob"]), lens.mean(toy), "{name}: {step}");
        assert_eq!(step["action_token_count"], json!(lens.action.len()));
        assert_eq!(step["logprob_start_len"], json!(lens.context.len() - 1));
        match with_plain {
            true => assert_eq!(number(&step["plain_mean_logprob"]), plain.mean(toy), "{name}: {step}"),
            false => assert!(step.get("plain_mean_logprob").is_none()),
        }
    }
    steps.len()
}

async fn check(template: &str, server: StandIn, placement: Placement, ratio: &str) -> (Place, usize) {
    let place = Place::recorded(template);
    let arguments = ["--placement", placement.name(), "--ratio", ratio];
    place.credit(&server, &arguments).await.expect(0);
    let names = ["episode_001", "episode_002", "episode_003"];
    let n_steps: usize = names.iter().map(|name| check_means(&place, name, placement, ratio == "lift")).sum();
    assert_eq!(n_steps, 27);
    let n_asked = place.asked(&server).len();
    let summary = place.summary();
    assert_eq!(summary["requests"], json!(n_asked));
    let sent: usize = place.asked(&server).iter().map(|it| it.ids.len()).sum();
    assert_eq!(summary["tokens"]["sent"], json!(sent), "{summary}");
    (place, n_asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_pass_for_each_outcome_text() {
    let (_, n_sglang) = check(KEEPS, sglang().await, Placement::First, "mean").await;
    let (_, n_vllm) = check(KEEPS, vllm().await, Placement::First, "mean").await;
    assert_eq!((n_sglang, n_vllm), (9, 9), "three episodes of planning and two subtasks");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plain_lens_is_one_more_pass() {
    let (place, n_asked) = check(KEEPS, sglang().await, Placement::First, "lift").await;
    assert_eq!(n_asked, 12);
    let step = &place.scores("episode_001")["steps"][0];
    let lift = (number(&step["mean_logprob"]) - number(&step["plain_mean_logprob"])) / 5.0;
    assert_eq!(number(&step["rho"]), lift.exp().clamp(0.8, 1.2));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_told_last_is_a_branch_for_each_step() {
    let (place, n_asked) = check(KEEPS, sglang().await, Placement::Last, "mean").await;
    assert_eq!(n_asked, 27);
    let tokens = &place.summary()["tokens"];
    let (sent, cached) = (number(&tokens["sent"]), number(&tokens["cached"]));
    assert!(cached > 0.6 * sent, "branches find their trunk: {tokens}");
    check(KEEPS, vllm().await, Placement::Last, "lift").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_in_the_last_user_message_is_seen_there() {
    check(KEEPS, sglang().await, Placement::LastUser, "lift").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_forgets_costs_more_and_gives_the_same() {
    let (_, n_first) = check(FORGETS, sglang().await, Placement::First, "lift").await;
    assert!(n_first > 12, "steps whose history was rewritten are sequences of their own: {n_first}");
    check(FORGETS, vllm().await, Placement::Last, "mean").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_last_tokens_of_an_action_may_count() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    place.credit(&server, &["--max-logprob-tokens", "5"]).await.expect(0);
    for (step, alone) in place.scores("episode_002")["steps"].as_array().unwrap().iter().zip(alone(
        &place,
        "episode_002",
        Some(Placement::First),
        OUTCOME_TEMPLATE,
    )) {
        let logprobs = Toy { weights: 1 }.logprobs(&alone.tokens());
        let tail: Vec<Option<Logprob>> =
            logprobs[logprobs.len() - 5..].iter().map(|it| it.map(|it| Logprob::new(it).unwrap())).collect();
        assert_eq!(number(&step["mean_logprob"]), mean_logprob(tail).unwrap());
        assert_eq!(step["skipped_action_tokens"], json!(alone.action.len() - 5));
        assert_eq!(step["logprob_start_len"], json!(alone.tokens().len() - 6));
    }
}

/// The means of an episode's steps are those of steps scored alone.
fn check_alone(place: &Place, name: &str, alone: &[Alone]) {
    let scores = place.scores(name);
    for (step, alone) in scores["steps"].as_array().unwrap().iter().zip(alone) {
        assert_eq!(number(&step["mean_logprob"]), alone.mean(Toy { weights: 1 }), "{name}: {step}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_written_as_text_change_nothing_about_that() {
    let plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    // A template that refuses the role of tools gets their results as a user's.
    let strict = format!(
        "{{% for m in messages %}}{{% if m.role == 'tool' %}}{{{{ raise_exception('no') }}}}{{% endif %}}{{% endfor %}}{plain}"
    );
    for (template, choice) in
        [(plain, ToolText::Hermes), (plain, ToolText::Flatten), (&strict, ToolText::Hermes)]
    {
        for placement in [Placement::First, Placement::Last] {
            let (place, server) = (Place::recorded(template), sglang().await);
            let name = choice.name();
            place.credit(&server, &["--tool-text", name, "--placement", placement.name()]).await.expect(0);
            for name in ["episode_001", "episode_003"] {
                let alone =
                    alone_without(&place, name, Some(placement), OUTCOME_TEMPLATE, Some(choice), &|_| 0..0);
                check_alone(&place, name, &alone);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shortened_steps_are_those_of_the_shortened_conversation() {
    for (placement, limit) in [(Placement::First, "900"), (Placement::Last, "1100")] {
        let (place, server) = (Place::recorded(KEEPS), sglang().await);
        let ran = place.credit(&server, &["--max-context", limit, "--placement", placement.name()]).await;
        assert!(ran.stderr.contains("read without some of their context"), "{}", ran.stderr);
        let scores = place.scores("episode_002");
        let steps = scores["steps"].as_array().unwrap();
        let dropped = |idx: usize| match steps[idx].get("dropped_messages") {
            Some(range) => number(&range[0]) as usize..number(&range[1]) as usize,
            None => 0..0,
        };
        let alone = alone_without(&place, "episode_002", Some(placement), OUTCOME_TEMPLATE, None, &dropped);
        let mut n_shortened = 0;
        for (idx, (step, alone)) in steps.iter().zip(&alone).enumerate() {
            let Some(mean) = step["mean_logprob"].as_f64() else {
                assert!(step["error"].as_str().unwrap().contains("the context holds"), "{step}");
                continue;
            };
            assert_eq!(mean, alone.mean(Toy { weights: 1 }), "{step}");
            assert!(alone.tokens().len() <= limit.parse().unwrap());
            n_shortened += usize::from(!dropped(idx).is_empty());
        }
        assert!(n_shortened > 0);
    }
}

/// The published words, in the published place, for the published mapping of steps.
#[tokio::test(flavor = "multi_thread")]
async fn the_published_words_are_what_the_model_reads() {
    let (place, server) = (Place::recorded(KEEPS), sglang().await);
    let words = include_str!("../../fixtures/hcapo/hindsight_template.txt");
    place.write("published.txt", words);
    place.credit(&server, &["--hindsight-template", "published.txt"]).await.expect(0);
    let (tokenizer, texts) = (place.tokenizer(), asked_texts(&place, &server));
    for name in ["episode_001", "episode_002", "episode_003"] {
        let episode = load_directory(&place.path(&format!("episodes/{name}"))).unwrap().episode;
        for text in lens_texts(&episode, words) {
            let shown = decoded(&tokenizer, &tokenizer.encode(&text).unwrap().ids);
            assert!(texts.iter().any(|asked| asked.contains(&shown)), "{text}");
        }
        let published = crate::support::tiny::fixture("hcapo/dataset/plan_fixed")
            .join(name)
            .join("hindsight_scores.json");
        let published: Value = serde_json::from_str(&std::fs::read_to_string(published).unwrap()).unwrap();
        let place_of = |step: &Value| {
            ["message_index", "subtask_id", "subtask_reward", "phase"].map(|key| step[key].clone())
        };
        let places =
            |scores: &Value| scores["steps"].as_array().unwrap().iter().map(place_of).collect::<Vec<_>>();
        assert_eq!(places(&place.scores(name)), places(&published), "{name}");
    }
}

pub fn decoded(tokenizer: &Tokenizer, ids: &[TokenId]) -> String {
    tokenizer.decode(ids).unwrap()
}

pub fn asked_texts(place: &Place, server: &StandIn) -> Vec<String> {
    let tokenizer = place.tokenizer();
    place.asked(server).iter().map(|it| decoded(&tokenizer, &it.ids)).collect()
}
