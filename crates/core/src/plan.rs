//! Which requests give the scores that are asked for, at the least cost.
//!
//! Owns the token tree over all jobs of a run, the plan made from it and the way back from answers to
//! jobs. The logprob of a token depends on nothing but the tokens before it, so every place in the tree
//! is scored once, whoever asks for it: a job that is a prefix of another rides along in the other's
//! pass, and branches of a common trunk pay for the trunk once where the backend keeps it. There is one
//! request for each leaf. Leaves are visited depth first, the deepest first: so the trunk is computed by
//! the first request and all its branches may follow at once, and a backend that keeps only its last
//! sequence finds as much in it as one that keeps everything.
//!
//! Deliberately absent: sending requests, and hoping; the cached tokens told here are expected under
//! the backend's rule, what a server really found is in its answer.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use crate::score::{Absence, ScoreJob, SpanScore, TokenScore};
use crate::tokens::{TokenId, TokenSpan, TopK};

/// What a backend does with a request for scores, as far as its cost goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Whether tokens computed for earlier requests are reused, up to the token before the first scored one.
    pub caches_scores: bool,
    /// Whether scoring can begin in the middle of a prompt; without it every position is scored and sent back.
    pub start_index: bool,
    /// At most this many positions scored in one request, for servers whose memory the logits would fill.
    pub max_scored: Option<usize>,
}

impl Backend {
    /// The cached prefix reaches up to the first scored token.
    pub const CACHING: Self = Self { caches_scores: true, start_index: true, max_scored: None };
    /// The logprobs of a prompt are computed from its first token on, every time.
    pub const RECOMPUTING: Self = Self { caches_scores: false, start_index: false, max_scored: None };
}

/// One request of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedRequest {
    /// What to ask: tokens up to the last needed one, and the spans that are needed.
    pub ask: ScoreJob,
    /// The request whose tokens this one expects to find cached. It should have been answered before this one is sent.
    pub after: Option<usize>,
    /// How many tokens it expects to find there.
    pub cached: usize,
}

impl PlannedRequest {
    /// How many tokens are sent.
    pub fn n_tokens(&self) -> usize {
        self.ask.tokens().len()
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
    }
}

/// The requests that serve a list of jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
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

/// Plans the requests for `jobs`.
pub fn plan(jobs: &[ScoreJob], backend: &Backend) -> Plan {
    let mut tree = Tree::new(jobs);
    let mut requests = Vec::new();
    for leaf in tree.leaves_depth_first() {
        tree.request_leaf(leaf, backend, &mut requests);
    }
    let parts = (0..jobs.len()).map(|job| tree.parts(job)).collect();
    Plan { figures: figures(jobs, &requests), requests, parts }
}

fn figures(jobs: &[ScoreJob], requests: &[PlannedRequest]) -> Figures {
    let needed = jobs.iter().filter(|job| job.first_needed().is_some());
    Figures {
        naive_tokens: needed.clone().map(|job| job.end_needed() as u64).sum(),
        naive_requests: needed.count() as u64,
        sent_tokens: requests.iter().map(|request| request.n_tokens() as u64).sum(),
        cached_tokens: requests.iter().map(|request| request.cached as u64).sum(),
        requests: requests.len() as u64,
    }
}

impl Plan {
    /// The requests a job's answer is made of.
    pub fn requests_of(&self, job_idx: usize) -> BTreeSet<usize> {
        self.parts[job_idx].iter().map(|part| part.request).collect()
    }

    /// Puts one job's scores together from the answers of its requests, each given by its index.
    pub fn assemble<'a>(
        &self,
        jobs: &[ScoreJob],
        job_idx: usize,
        answer: impl Fn(usize) -> Option<&'a [SpanScore]>,
    ) -> Result<Vec<SpanScore>, Unanswered> {
        let job = &jobs[job_idx];
        // Position 0 is in no request: nothing precedes it.
        let first = |span: &TokenSpan| span.contains(0).then(no_context);
        let mut scores: Vec<Vec<TokenScore>> =
            job.spans().iter().map(|span| Vec::from_iter(first(span))).collect();
        for part in &self.parts[job_idx] {
            let asked = &self.requests[part.request].ask;
            let found = answer(part.request).and_then(|answer| positions_of(asked, answer, &part.positions));
            let found = found.ok_or(Unanswered { request: part.request })?;
            let given = &job.tokens()[part.positions.clone()];
            let cut = found.iter().zip(given).map(|(score, token)| cut_back(score, job.top_k(), *token));
            scores[part.span_idx].extend(cut);
        }
        let spans = job.spans().iter().zip(scores).map(|(span, scores)| SpanScore::new(*span, scores));
        let any_request = self.parts[job_idx].first().map_or(0, |part| part.request);
        spans.collect::<Result<_, _>>().map_err(|_| Unanswered { request: any_request })
    }
}

fn no_context() -> TokenScore {
    TokenScore { logprob: Err(Absence::NoContext), top: TopK::default() }
}

/// The scores of positions that lie inside one span of what was asked.
fn positions_of<'a>(
    asked: &ScoreJob,
    answer: &'a [SpanScore],
    positions: &Range<usize>,
) -> Option<&'a [TokenScore]> {
    let idx = asked.spans().partition_point(|span| span.end() <= positions.start);
    let span = answer.get(idx).filter(|it| asked.spans().get(idx) == Some(&it.span()))?;
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

/// A stretch of the token tree without a branch; its tokens are those of `source` at `begin..end`.
struct Node {
    source: usize,
    begin: usize,
    end: usize,
    parent: usize,
    children: Vec<usize>,
    /// Where logprobs are needed, in no order and overlapping.
    needed: Vec<Range<usize>>,
    /// The most candidates any job needs here.
    top_k: usize,
    /// The requests that first passed through, once there are any.
    passed_by: Option<Range<usize>>,
    /// Which request scores which of the needed positions.
    served: Vec<(Range<usize>, usize)>,
}

/// The root, which has no tokens and is its own parent.
const ROOT: usize = 0;

/// The tree of all jobs' tokens, each job cut behind the last token it needs.
struct Tree<'j> {
    jobs: &'j [ScoreJob],
    nodes: Vec<Node>,
    /// The child of a node that begins with a token: a root may have as many as there are tokens.
    child_by_token: HashMap<(usize, TokenId), usize>,
    /// The node each job ends in; none for a job that needs nothing.
    ends: Vec<Option<usize>>,
}

impl<'j> Tree<'j> {
    fn new(jobs: &'j [ScoreJob]) -> Self {
        let mut tree = Self { jobs, nodes: Vec::new(), child_by_token: HashMap::new(), ends: Vec::new() };
        tree.add(0, 0, 0, ROOT);
        for (idx, job) in jobs.iter().enumerate() {
            let end = job.first_needed().map(|_| tree.insert(idx));
            tree.ends.push(end);
        }
        for idx in 0..jobs.len() {
            tree.mark_needed(idx);
        }
        tree
    }

    fn add(&mut self, source: usize, begin: usize, end: usize, parent: usize) -> usize {
        let (children, needed, served) = (Vec::new(), Vec::new(), Vec::new());
        self.nodes.push(Node {
            source,
            begin,
            end,
            parent,
            children,
            needed,
            top_k: 0,
            passed_by: None,
            served,
        });
        self.nodes.len() - 1
    }

    fn tokens(&self, node: &Node) -> &'j [TokenId] {
        &self.jobs[node.source].tokens()[node.begin..node.end]
    }

    /// Adds a job's tokens and gives the node they end in.
    fn insert(&mut self, job: usize) -> usize {
        let tokens = &self.jobs[job].tokens()[..self.jobs[job].end_needed()];
        let (mut node, mut depth) = (ROOT, 0);
        while depth < tokens.len() {
            let Some(&child) = self.child_by_token.get(&(node, tokens[depth])) else {
                let leaf = self.add(job, depth, tokens.len(), node);
                self.nodes[node].children.push(leaf);
                self.child_by_token.insert((node, tokens[depth]), leaf);
                return leaf;
            };
            let shared = common_prefix(self.tokens(&self.nodes[child]), &tokens[depth..]);
            depth += shared;
            node = if depth == self.nodes[child].end { child } else { self.split(child, depth) };
        }
        node
    }

    /// Splits a node so that its upper part ends at `depth`; gives that part.
    fn split(&mut self, child: usize, depth: usize) -> usize {
        let Node { source, begin, parent, .. } = self.nodes[child];
        let upper = self.add(source, begin, depth, parent);
        let tokens = self.jobs[source].tokens();
        self.nodes[upper].children.push(child);
        self.nodes[child].begin = depth;
        self.nodes[child].parent = upper;
        let slot = self.nodes[parent].children.iter_mut().find(|it| **it == child);
        slot.into_iter().for_each(|it| *it = upper);
        self.child_by_token.insert((parent, tokens[begin]), upper);
        self.child_by_token.insert((upper, tokens[depth]), child);
        upper
    }

    fn mark_needed(&mut self, job: usize) {
        let top_k = self.jobs[job].top_k();
        for span in self.jobs[job].spans() {
            for (node, positions) in self.overlaps(job, *span) {
                self.nodes[node].needed.push(positions);
                self.nodes[node].top_k = self.nodes[node].top_k.max(top_k);
            }
        }
    }

    /// The nodes a job's span runs through, upwards, with its positions in each. Position 0 is in none.
    fn overlaps(&self, job: usize, span: TokenSpan) -> Vec<(usize, Range<usize>)> {
        let positions = span.start().max(1)..span.end();
        let mut found = Vec::new();
        let Some(mut node) = self.ends[job].filter(|_| !positions.is_empty()) else { return found };
        while node != ROOT && self.nodes[node].end > positions.start {
            found.extend(
                overlap(&positions, self.nodes[node].begin..self.nodes[node].end).map(|it| (node, it)),
            );
            node = self.nodes[node].parent;
        }
        found
    }

    /// The leaves, the deepest branch of every node first; trees that share nothing keep the jobs' order.
    fn leaves_depth_first(&self) -> Vec<usize> {
        let depths = self.subtree_depths();
        let mut leaves = Vec::new();
        let mut stack = vec![ROOT];
        while let Some(node) = stack.pop() {
            let mut children = self.nodes[node].children.clone();
            if children.is_empty() && node != ROOT {
                leaves.push(node);
            }
            if node != ROOT {
                children.sort_by_key(|child| (usize::MAX - depths[*child], self.nodes[*child].source));
            }
            stack.extend(children.into_iter().rev());
        }
        leaves
    }

    /// How deep the deepest leaf below each node lies.
    fn subtree_depths(&self) -> Vec<usize> {
        let mut depths = vec![0; self.nodes.len()];
        for (leaf, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.children.is_empty()) {
            let mut above = leaf;
            while depths[above] < node.end {
                depths[above] = node.end;
                above = self.nodes[above].parent;
            }
        }
        depths
    }

    /// Adds the requests for what is needed between the part of the tree already passed and a leaf.
    fn request_leaf(&mut self, leaf: usize, backend: &Backend, requests: &mut Vec<PlannedRequest>) {
        let (trunk, path) = self.unvisited_path(leaf);
        let needed = merged(path.iter().flat_map(|node| self.nodes[*node].needed.clone()).collect());
        let top_k = path.iter().map(|node| self.nodes[*node].top_k).max().unwrap_or(0);
        let first_request = requests.len();
        let mut present = self.nodes[trunk].end;
        for piece in pieces(needed, backend) {
            let (Some(first), Some(last)) = (piece.first(), piece.last()) else { continue };
            let (start, end) = (first.start - 1, last.end);
            let cached = if backend.caches_scores { present.min(start) } else { 0 };
            let after = self.provider(trunk, requests, first_request, cached);
            for node in &path {
                let own = self.nodes[*node].begin..self.nodes[*node].end;
                let served = piece.iter().filter_map(|it| Some((overlap(it, own.clone())?, requests.len())));
                self.nodes[*node].served.extend(served);
            }
            requests.extend(self.ask(leaf, end, &piece, top_k).map(|ask| PlannedRequest {
                ask,
                after,
                cached,
            }));
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
            node = self.nodes[node].parent;
        }
        path.reverse();
        (node, path)
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
        if cached <= self.nodes[trunk].end { from_trunk.or(before) } else { before }
    }

    /// The request itself. Tokens are shared with the job they come from where all of them are sent.
    fn ask(&self, leaf: usize, end: usize, piece: &[Range<usize>], top_k: usize) -> Option<ScoreJob> {
        let source = self.jobs[self.nodes[leaf].source].tokens();
        let tokens = if end == source.len() { Arc::clone(source) } else { Arc::from(&source[..end]) };
        let spans = piece.iter().map(|it| TokenSpan::at(it.start, it.len())).collect();
        ScoreJob::new(tokens, spans, top_k).ok()
    }

    /// Where a job's positions are scored.
    fn parts(&self, job: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        for (span_idx, span) in self.jobs[job].spans().iter().enumerate() {
            for (node, positions) in self.overlaps(job, *span).into_iter().rev() {
                let served = self.nodes[node].served.iter();
                let own =
                    served.filter_map(|(it, request)| Some((overlap(it, positions.clone())?, *request)));
                parts.extend(own.map(|(positions, request)| Part { span_idx, positions, request }));
            }
        }
        parts
    }
}

fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn overlap(a: &Range<usize>, b: Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}

/// The union of ranges, in order, touching ones joined.
fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
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

/// Cuts the needed ranges into runs that span no more positions than the backend scores at once.
fn pieces(ranges: Vec<Range<usize>>, backend: &Backend) -> Vec<Vec<Range<usize>>> {
    let Some(max) = backend.max_scored.filter(|_| backend.start_index) else { return vec![ranges] };
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
