//! Which requests give the scores that are asked for, at the least cost.
//!
//! Owns the plan made from a token tree and the jobs in it, and the way back from answers to jobs. The logprob of a token depends on nothing but the tokens before it, so every place in the tree
//! is scored once, whoever asks for it: a job that is a prefix of another rides along in the other's
//! pass, and branches of a common trunk pay for the trunk once where the backend keeps it. There is one
//! request for each leaf. Leaves are visited depth first, the deepest first: so the trunk is computed by
//! the first request and all its branches may follow at once, and a backend that keeps only its last
//! sequence finds as much in it as one that keeps everything.
//!
//! Deliberately absent: sending requests, and hoping; the cached tokens told here are expected under
//! the backend's rule, what a server really found is in its answer.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::model::Limits;
use crate::score::{Absence, ScoreJob, SpanScore, TokenScore, end_needed, first_needed};
use crate::tokens::{TokenId, TokenSpan, TopK};
use crate::tree::{ROOT, Tip, TokenTree};

/// Spans to be scored of a sequence in a tree.
#[derive(Clone, Debug, PartialEq)]
pub struct TipJob {
    /// Context and what is scored.
    pub tip: Tip,
    /// What is to be scored, inside the sequence, in the order of the answer.
    pub spans: Vec<TokenSpan>,
    /// How many candidates per position; 0 asks for the given token only.
    pub top_k: usize,
    /// The candidates wanted at each position of the spans, one after another, however likely they are; none where the
    /// likeliest are wanted. A backend that cannot be asked for them is asked for `top_k`, among which they may be.
    pub chosen: Option<Vec<Arc<[TokenId]>>>,
}

impl TipJob {
    /// The chosen candidates at a position of one of its spans, where candidates are chosen.
    fn chosen_at(&self, span_idx: usize, position: usize) -> Option<&[TokenId]> {
        let before: usize = self.spans[..span_idx].iter().map(|span| span.len()).sum();
        let lists = self.chosen.as_ref()?;
        Some(lists.get(before + position - self.spans[span_idx].start()).map_or(&[], |it| it))
    }

    /// How many candidates a backend is asked for that can be asked for chosen ones, or cannot.
    fn likeliest(&self, chooses: bool) -> usize {
        if chooses && self.chosen.is_some() { 0 } else { self.top_k }
    }
}

/// Positions scored in one request at most where candidates are chosen: each of them answers for all candidates of the
/// others.
const CHOSEN_AT_ONCE: usize = 64;

/// One request of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedRequest {
    /// What to ask: tokens up to the last needed one, and the spans that are needed.
    ask: TipJob,
    /// The request whose tokens this one expects to find cached. It should have been answered before this one is sent.
    pub after: Option<usize>,
    /// How many tokens it expects to find there.
    pub cached: usize,
}

impl PlannedRequest {
    /// How many tokens are sent.
    pub fn n_tokens(&self) -> usize {
        self.ask.tip.len()
    }

    /// Whether candidates are chosen, which makes a long answer of a few tokens.
    pub fn chooses(&self) -> bool {
        self.ask.chosen.is_some()
    }
}

/// What a plan costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Tokens if each job were sent alone and nothing were cached.
    pub naive_tokens: u64,
    /// Requests if each job were sent alone.
    pub naive_requests: u64,
    /// Tokens sent.
    pub sent_tokens: u64,
    /// Of those, expected in the backend's cache.
    pub cached_tokens: u64,
    /// Requests.
    pub requests: u64,
    /// Sequences that are no beginning of another: as many passes as there must be, whatever is cut into pieces.
    pub passes: u64,
}

impl Figures {
    /// Tokens the backend is expected to compute.
    pub fn computed_tokens(&self) -> u64 {
        self.sent_tokens - self.cached_tokens
    }
}

impl std::ops::AddAssign for Figures {
    fn add_assign(&mut self, other: Self) {
        self.naive_tokens += other.naive_tokens;
        self.naive_requests += other.naive_requests;
        self.sent_tokens += other.sent_tokens;
        self.cached_tokens += other.cached_tokens;
        self.requests += other.requests;
        self.passes += other.passes;
    }
}

/// The requests that serve a list of jobs. Their tokens stay in the tree until somebody asks.
#[derive(Clone, Debug)]
pub struct Plan {
    tree: Arc<TokenTree>,
    jobs: Vec<TipJob>,
    /// Whether the backend can be asked for chosen candidates.
    chooses: bool,
    /// In the order to send them; each depends only on earlier ones.
    pub requests: Vec<PlannedRequest>,
    /// What it costs.
    pub figures: Figures,
    /// For each job, where its positions are scored, in the order of its spans and positions.
    parts: Vec<Vec<Part>>,
}

/// Positions of one job's span that one request scores.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    span_idx: usize,
    positions: Range<usize>,
    request: usize,
}

/// A job cannot be put together: this request has no answer, or one that does not fit what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {request} of the plan has no usable answer")]
pub struct Unanswered {
    /// The index of the request.
    pub request: usize,
}

/// Plans the requests for `jobs` to a backend with these limits.
pub fn plan(jobs: &[ScoreJob], limits: &Limits) -> Plan {
    let mut tree = TokenTree::default();
    let job = |job: &ScoreJob| TipJob {
        tip: tree.grow(Tip::EMPTY, job.tokens()),
        spans: job.spans().to_vec(),
        top_k: job.top_k(),
        chosen: None,
    };
    let jobs = jobs.iter().map(job).collect();
    plan_tree(Arc::new(tree), jobs, limits)
}

/// Plans the requests for jobs whose sequences are in a tree.
pub fn plan_tree(tree: Arc<TokenTree>, jobs: Vec<TipJob>, limits: &Limits) -> Plan {
    let mut paths = Paths::new(&tree, &jobs, limits.chosen);
    let mut requests = Vec::new();
    let leaves = paths.leaves_depth_first();
    let passes = leaves.len() as u64;
    for leaf in leaves {
        paths.request_leaf(leaf, limits, &mut requests);
    }
    let parts = jobs.iter().map(|job| paths.parts(job)).collect();
    let chooses = limits.chosen;
    Plan { figures: figures(&jobs, &requests, passes), requests, parts, jobs, chooses, tree }
}

fn figures(jobs: &[TipJob], requests: &[PlannedRequest], passes: u64) -> Figures {
    let needed = jobs.iter().filter(|job| first_needed(&job.spans).is_some());
    Figures {
        naive_tokens: needed.clone().map(|job| end_needed(&job.spans) as u64).sum(),
        naive_requests: needed.count() as u64,
        sent_tokens: requests.iter().map(|request| request.n_tokens() as u64).sum(),
        cached_tokens: requests.iter().map(|request| request.cached as u64).sum(),
        requests: requests.len() as u64,
        passes,
    }
}

impl Plan {
    /// How many jobs it serves.
    pub fn n_jobs(&self) -> usize {
        self.jobs.len()
    }

    /// A request as it is sent; none if its sequence is empty.
    pub fn ask(&self, request: usize) -> Option<ScoreJob> {
        let ask = &self.requests[request].ask;
        self.written_out(ask, ask.top_k)
    }

    /// A job as it is sent alone; none if its sequence is empty.
    pub fn job(&self, job: usize) -> Option<ScoreJob> {
        let job = &self.jobs[job];
        self.written_out(job, job.likeliest(self.chooses))
    }

    /// Whether a job's candidates are chosen: its requests are short because asked for alone it would be answered at length.
    pub fn is_chosen(&self, job: usize) -> bool {
        self.chooses && self.jobs[job].chosen.is_some()
    }

    fn written_out(&self, job: &TipJob, top_k: usize) -> Option<ScoreJob> {
        let alone = ScoreJob::new(Arc::from(self.tree.all(job.tip)), job.spans.clone(), top_k).ok()?;
        match job.chosen.as_ref().filter(|_| self.chooses) {
            Some(chosen) => alone.choosing(chosen.clone()).ok(),
            None => Some(alone),
        }
    }

    /// The requests a job's answer is made of.
    pub fn requests_of(&self, job_idx: usize) -> BTreeSet<usize> {
        self.parts[job_idx].iter().map(|part| part.request).collect()
    }

    /// Puts one job's scores together from the answers of its requests, each given by its index.
    pub fn assemble<'a>(
        &self,
        job_idx: usize,
        answer: impl Fn(usize) -> Option<&'a [SpanScore]>,
    ) -> Result<Vec<SpanScore>, Unanswered> {
        let job = &self.jobs[job_idx];
        // Position 0 is in no request: nothing precedes it.
        let first = |span: &TokenSpan| span.contains(0).then(no_context);
        let mut scores: Vec<Vec<TokenScore>> =
            job.spans.iter().map(|span| Vec::from_iter(first(span))).collect();
        for part in &self.parts[job_idx] {
            let asked = &self.requests[part.request].ask;
            let found = answer(part.request).and_then(|answer| positions_of(asked, answer, &part.positions));
            let found = found.ok_or(Unanswered { request: part.request })?;
            let given = self.tree.tokens(job.tip, part.positions.clone());
            let cut =
                part.positions.clone().zip(found).zip(given).map(|((position, score), token)| {
                    match job.chosen_at(part.span_idx, position) {
                        Some(chosen) => only(score, chosen, token),
                        None => cut_back(score, job.top_k, token),
                    }
                });
            scores[part.span_idx].extend(cut);
        }
        let spans = job.spans.iter().zip(scores).map(|(span, scores)| SpanScore::new(*span, scores));
        let any_request = self.parts[job_idx].first().map_or(0, |part| part.request);
        spans.collect::<Result<_, _>>().map_err(|_| Unanswered { request: any_request })
    }
}

fn no_context() -> TokenScore {
    TokenScore { logprob: Err(Absence::NoContext), top: TopK::default() }
}

/// The scores of positions that lie inside one span of what was asked.
fn positions_of<'a>(
    asked: &TipJob,
    answer: &'a [SpanScore],
    positions: &Range<usize>,
) -> Option<&'a [TokenScore]> {
    let idx = asked.spans.partition_point(|span| span.end() <= positions.start);
    let span = answer.get(idx).filter(|it| asked.spans.get(idx) == Some(&it.span()))?;
    let start = positions.start.checked_sub(span.span().start())?;
    span.scores().get(start..start + positions.len())
}

/// What a request for `top_k` candidates alone would have given: the best of them, and the given token.
fn cut_back(score: &TokenScore, top_k: usize, given: TokenId) -> TokenScore {
    let entries = score.top.entries();
    let mut kept: Vec<_> = entries.iter().take(top_k).copied().collect();
    if let Some(own) = score.top.get(given).filter(|_| top_k > 0) {
        kept.push((given, own));
    }
    TokenScore { logprob: score.logprob.clone(), top: TopK::new(kept) }
}

/// Of what was answered, the chosen candidates that are there, and the given token.
fn only(score: &TokenScore, chosen: &[TokenId], given: TokenId) -> TokenScore {
    let is_wanted = |id: TokenId| id == given || chosen.contains(&id);
    let mut kept: Vec<_> = score.top.entries().iter().filter(|(id, _)| is_wanted(*id)).copied().collect();
    if let (Ok(own), None) = (&score.logprob, score.top.get(given)) {
        kept.push((given, *own));
    }
    TokenScore { logprob: score.logprob.clone(), top: TopK::new(kept) }
}

/// What a plan knows about a node of the tree.
#[derive(Clone, Default)]
struct Node {
    /// The first job that runs through; none if no job does.
    first_job: Option<usize>,
    /// Where the longest job that runs through ends.
    deepest: usize,
    /// The nodes behind it that jobs run through.
    children: Vec<usize>,
    /// Where logprobs are needed, in no order and overlapping.
    needed: Vec<Range<usize>>,
    /// The most candidates any job needs here.
    top_k: usize,
    /// The candidates that are chosen there, by position.
    chosen: Vec<(usize, Arc<[TokenId]>)>,
    /// The requests that first passed through, once there are any.
    passed_by: Option<Range<usize>>,
    /// Which request scores which of the needed positions, in order.
    served: Vec<(Range<usize>, usize)>,
}

/// The nodes that jobs run through, each job cut behind the last token it needs.
struct Paths<'j> {
    tree: &'j TokenTree,
    nodes: Vec<Node>,
}

impl<'j> Paths<'j> {
    fn new(tree: &'j TokenTree, jobs: &[TipJob], chooses: bool) -> Self {
        let mut paths = Self { tree, nodes: vec![Node::default(); tree.n_nodes()] };
        for (idx, job) in jobs.iter().enumerate().filter(|(_, job)| first_needed(&job.spans).is_some()) {
            let end = tree.cut(job.tip, end_needed(&job.spans));
            let node = &mut paths.nodes[tree.node(end)];
            node.first_job.get_or_insert(idx);
            node.deepest = node.deepest.max(end.len());
            paths.mark_needed(job, chooses);
        }
        paths.tell_parents();
        paths
    }

    fn mark_needed(&mut self, job: &TipJob, chooses: bool) {
        let top_k = job.likeliest(chooses);
        for (span_idx, span) in job.spans.iter().enumerate() {
            for (idx, positions) in self.tree.path(job.tip, needed_of(*span)) {
                let node = &mut self.nodes[idx];
                let chosen = |at: usize| Some((at, Arc::from(job.chosen_at(span_idx, at)?)));
                node.chosen.extend(positions.clone().filter(|_| chooses).filter_map(chosen));
                node.needed.push(positions);
                node.top_k = node.top_k.max(top_k);
            }
        }
    }

    /// Tells every node of those behind it, the last ones first.
    fn tell_parents(&mut self) {
        let mut order: Vec<usize> = (ROOT + 1..self.nodes.len()).collect();
        order.sort_by_key(|node| usize::MAX - self.tree.positions(*node).start);
        for node in order {
            let (first, deepest) = (self.nodes[node].first_job, self.nodes[node].deepest);
            let Some(first) = first else { continue };
            let parent = &mut self.nodes[self.tree.parent(node)];
            parent.first_job = Some(parent.first_job.map_or(first, |own| own.min(first)));
            parent.deepest = parent.deepest.max(deepest);
            parent.children.push(node);
        }
    }

    /// The leaves, the deepest branch of every node first; trees that share nothing keep the jobs' order.
    fn leaves_depth_first(&self) -> Vec<usize> {
        let mut leaves = Vec::new();
        let mut stack = vec![ROOT];
        while let Some(node) = stack.pop() {
            let mut children = self.nodes[node].children.clone();
            if children.is_empty() && node != ROOT {
                leaves.push(node);
            }
            let depth =
                |child: &usize| if node == ROOT { 0 } else { usize::MAX - self.nodes[*child].deepest };
            children.sort_by_key(|child| (depth(child), self.nodes[*child].first_job));
            stack.extend(children.into_iter().rev());
        }
        leaves
    }

    /// Adds the requests for what is needed between the part of the tree already passed and a leaf.
    fn request_leaf(&mut self, leaf: usize, limits: &Limits, requests: &mut Vec<PlannedRequest>) {
        let (trunk, path) = self.unvisited_path(leaf);
        let needed = merged(path.iter().flat_map(|node| self.nodes[*node].needed.clone()).collect());
        let top_k = path.iter().map(|node| self.nodes[*node].top_k).max().unwrap_or(0);
        let first_request = requests.len();
        let trunk = self.worth_waiting(trunk, limits.least_share);
        let mut present = self.tree.positions(trunk).end;
        let mut wanted: BTreeMap<usize, BTreeSet<TokenId>> = BTreeMap::new();
        for (at, chosen) in path.iter().flat_map(|node| &self.nodes[*node].chosen) {
            wanted.entry(*at).or_default().extend(chosen.iter());
        }
        for piece in pieces(needed, limits, !wanted.is_empty()) {
            let (Some(first), Some(last)) = (piece.first(), piece.last()) else { continue };
            let (start, end) = (first.start - 1, last.end);
            let cached = if limits.cached_scores { present.min(start) } else { 0 };
            let after = self.provider(trunk, requests, first_request, cached);
            for node in &path {
                let own = self.tree.positions(*node);
                let served = within(&piece, &own, Range::clone).map(|(it, _)| (it, requests.len()));
                self.nodes[*node].served.extend(served);
            }
            let spans = piece.iter().map(|it| TokenSpan::at(it.start, it.len())).collect();
            let of = |at: usize| wanted.get(&at).into_iter().flatten().copied().collect();
            let chosen = (!wanted.is_empty()).then(|| piece.iter().flat_map(Range::clone).map(of).collect());
            let ask = TipJob { tip: self.tree.at(leaf, end), spans, top_k, chosen };
            requests.push(PlannedRequest { ask, after, cached });
            present = end;
        }
        for node in path {
            self.nodes[node].passed_by = Some(first_request..requests.len());
        }
    }

    /// The lowest node above a leaf that was passed before, and the nodes from there down to the leaf.
    fn unvisited_path(&self, leaf: usize) -> (usize, Vec<usize>) {
        let (mut node, mut path) = (leaf, Vec::new());
        while node != ROOT && self.nodes[node].passed_by.is_none() {
            path.push(node);
            node = self.tree.parent(node);
        }
        path.reverse();
        (node, path)
    }

    /// Where a path leaves the request it should wait for: as low as every further request that is waited for in a row
    /// leaves it `least` tokens more. A few tokens are sooner computed than waited for.
    fn worth_waiting(&self, trunk: usize, least: usize) -> usize {
        let first = |node: usize| self.nodes[node].passed_by.as_ref().map(|passed| passed.start);
        let mut node = trunk;
        while node != ROOT {
            let mut above = self.tree.parent(node);
            while above != ROOT && first(above) == first(node) {
                above = self.tree.parent(above);
            }
            if self.tree.positions(node).end - self.tree.positions(above).end >= least {
                break;
            }
            node = above;
        }
        node
    }

    /// The earliest request that leaves `cached` tokens of this path behind: the piece before, or one that passed the trunk.
    fn provider(
        &self,
        trunk: usize,
        requests: &[PlannedRequest],
        first_request: usize,
        cached: usize,
    ) -> Option<usize> {
        let passed = self.nodes[trunk].passed_by.clone().filter(|_| cached > 0);
        let from_trunk = passed.and_then(|mut passed| passed.find(|idx| requests[*idx].n_tokens() >= cached));
        let before = (cached > 0 && requests.len() > first_request).then(|| requests.len() - 1);
        if cached <= self.tree.positions(trunk).end { from_trunk.or(before) } else { before }
    }

    /// Where a job's positions are scored.
    fn parts(&self, job: &TipJob) -> Vec<Part> {
        let mut parts = Vec::new();
        for (span_idx, span) in job.spans.iter().enumerate() {
            let own: Vec<_> = self.tree.path(job.tip, needed_of(*span)).collect();
            for (node, positions) in own.into_iter().rev() {
                let served = within(&self.nodes[node].served, &positions, |(it, _)| it.clone());
                parts.extend(served.map(|(positions, (_, request))| Part {
                    span_idx,
                    positions,
                    request: *request,
                }));
            }
        }
        parts
    }
}

/// The positions of a span that requests score: nothing precedes position 0.
fn needed_of(span: TokenSpan) -> Range<usize> {
    span.start().max(1)..span.end()
}

/// Those of some ranges in order that overlap another, and where.
fn within<'r, T>(
    all: &'r [T],
    own: &Range<usize>,
    range: impl Fn(&T) -> Range<usize>,
) -> impl Iterator<Item = (Range<usize>, &'r T)> {
    let first = all.partition_point(|it| range(it).end <= own.start);
    let own = own.clone();
    all[first..].iter().map_while(move |it| Some((overlap(&range(it), own.clone())?, it)))
}

fn overlap(a: &Range<usize>, b: Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}

/// The union of ranges, in order, touching ones joined.
pub(crate) fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let mut union: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match union.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => union.push(range),
        }
    }
    union
}

/// Cuts the needed ranges into runs that span no more positions than the backend scores at once. Where candidates are
/// chosen each run lies in one range, so that what is asked of it does not depend on what else is needed.
fn pieces(ranges: Vec<Range<usize>>, limits: &Limits, chooses: bool) -> Vec<Vec<Range<usize>>> {
    if chooses {
        let most = limits.max_scored.unwrap_or(CHOSEN_AT_ONCE).clamp(1, CHOSEN_AT_ONCE);
        let runs = |Range { start, end }: Range<usize>| {
            let run = move |start: usize| start..end.min(start + most);
            (start..end).step_by(most).map(move |start| std::iter::once(run(start)).collect())
        };
        return ranges.into_iter().flat_map(runs).collect();
    }
    let Some(max) = limits.max_scored.filter(|_| limits.start_index) else { return vec![ranges] };
    let mut pieces: Vec<Vec<Range<usize>>> = Vec::new();
    for mut range in ranges {
        while !range.is_empty() {
            let begun = pieces.last().and_then(|piece| piece.first()).map(|first| first.start + max.max(1));
            let limit = begun.filter(|limit| range.start < *limit).unwrap_or_else(|| {
                pieces.push(Vec::new());
                range.start + max.max(1)
            });
            let end = range.end.min(limit);
            pieces.iter_mut().last().into_iter().for_each(|piece| piece.push(range.start..end));
            range.start = end;
        }
    }
    pieces
}
