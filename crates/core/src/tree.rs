//! Token sequences that share their beginnings: a tree in which what several begin with is kept once.
//!
//! Owns [`TokenTree`]. A sequence is a [`Tip`], the place it ends at; growing one costs what is new, whatever
//! stands before it. No two branches of a node begin with the same token, so what two sequences share is where
//! their paths part. [`Replacements`] makes sequences that are others with a stretch replaced.

use std::collections::HashMap;
use std::ops::Range;

use crate::tokens::TokenId;

/// Where a sequence of a tree ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tip {
    node: usize,
    len: usize,
}

impl Tip {
    /// The empty sequence of every tree.
    pub const EMPTY: Self = Self { node: ROOT, len: 0 };

    /// How many tokens the sequence has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The root, which has no tokens and is its own parent.
pub(crate) const ROOT: usize = 0;

/// A stretch without a branch: the positions of its tokens, and where those are kept.
#[derive(Clone, Debug)]
struct Node {
    positions: Range<usize>,
    kept_at: usize,
    parent: usize,
    /// What was split off above it, in order: where an older sequence that names this node may end.
    uppers: Vec<usize>,
}

/// Sequences that share their beginnings.
#[derive(Clone, Debug)]
pub struct TokenTree {
    nodes: Vec<Node>,
    tokens: Vec<TokenId>,
    /// The branch of a node that begins with a token.
    branches: HashMap<(usize, TokenId), usize>,
}

impl Default for TokenTree {
    fn default() -> Self {
        let root = Node { positions: 0..0, kept_at: 0, parent: ROOT, uppers: Vec::new() };
        Self { nodes: vec![root], tokens: Vec::new(), branches: HashMap::new() }
    }
}

impl TokenTree {
    /// The sequence `from` with more tokens behind it.
    pub fn grow(&mut self, from: Tip, more: &[TokenId]) -> Tip {
        let Tip { mut node, mut len } = self.cut(from, from.len);
        let end = from.len + more.len();
        while len < end {
            let rest = &more[len - from.len..];
            let here = len..self.nodes[node].positions.end;
            let shared = common(self.kept(node, here.clone()), rest);
            len += shared;
            if shared == rest.len() {
                break;
            }
            if shared < here.len() {
                node = self.split(node, len);
            } else if let Some(branch) = self.branches.get(&(node, rest[shared])) {
                node = *branch;
                continue;
            }
            node = self.add(node, len, &rest[shared..]);
            len = end;
        }
        Tip { node, len }
    }

    /// Puts tokens behind a node: into the node itself if they are the next ones kept and nothing else follows it.
    fn add(&mut self, node: usize, at: usize, tokens: &[TokenId]) -> usize {
        let kept_at = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        let Node { positions, kept_at: own, .. } = &mut self.nodes[node];
        if node != ROOT && *own + positions.len() == kept_at {
            positions.end += tokens.len();
            return node;
        }
        let positions = at..at + tokens.len();
        self.nodes.push(Node { positions, kept_at, parent: node, uppers: Vec::new() });
        self.branches.insert((node, tokens[0]), self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    /// Splits a node so that its upper part ends at `at`; gives that part. The lower part keeps the node's number.
    fn split(&mut self, node: usize, at: usize) -> usize {
        let upper = self.nodes.len();
        let lower = &mut self.nodes[node];
        let (kept_at, parent, start) = (lower.kept_at, lower.parent, lower.positions.start);
        let lower_at = kept_at + at - start;
        (lower.positions.start, lower.kept_at, lower.parent) = (at, lower_at, upper);
        lower.uppers.push(upper);
        self.nodes.push(Node { positions: start..at, kept_at, parent, uppers: Vec::new() });
        self.branches.insert((parent, self.tokens[kept_at]), upper);
        self.branches.insert((upper, self.tokens[lower_at]), node);
        upper
    }

    /// The first `len` tokens of a sequence that has as many.
    pub fn cut(&self, tip: Tip, len: usize) -> Tip {
        let (mut node, len) = (tip.node, len.min(tip.len));
        while node != ROOT && self.nodes[node].positions.start >= len {
            let Node { uppers, parent, .. } = &self.nodes[node];
            let nearest = uppers.partition_point(|upper| self.nodes[*upper].positions.end < len);
            node = *uppers.get(nearest).unwrap_or(parent);
        }
        Tip { node, len }
    }

    /// How many tokens two sequences begin with alike.
    pub fn shared(&self, a: Tip, b: Tip) -> usize {
        let (mut left, mut right) = (self.cut(a, a.len), self.cut(b, b.len));
        while left.node != right.node {
            let depth = |tip: Tip| (self.begin(tip), tip.node != ROOT);
            let lower = if depth(left) < depth(right) { &mut right } else { &mut left };
            *lower = self.cut(*lower, self.begin(*lower));
        }
        left.len.min(right.len)
    }

    /// Whether two sequences have the same tokens.
    pub fn are_equal(&self, a: Tip, b: Tip) -> bool {
        self.cut(a, a.len) == self.cut(b, b.len)
    }

    fn begin(&self, tip: Tip) -> usize {
        self.nodes[tip.node].positions.start
    }

    /// The tokens of a sequence at these positions.
    pub fn tokens(&self, tip: Tip, positions: Range<usize>) -> Vec<TokenId> {
        let pieces: Vec<&[TokenId]> =
            self.path(tip, positions).map(|(node, here)| self.kept(node, here)).collect();
        pieces.into_iter().rev().flatten().copied().collect()
    }

    /// All tokens of a sequence.
    pub fn all(&self, tip: Tip) -> Vec<TokenId> {
        self.tokens(tip, 0..tip.len)
    }

    /// How many tokens are kept for all sequences together.
    pub fn n_kept(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn n_nodes(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn positions(&self, node: usize) -> Range<usize> {
        self.nodes[node].positions.clone()
    }

    pub(crate) fn parent(&self, node: usize) -> usize {
        self.nodes[node].parent
    }

    /// The sequence that ends at a position in a node or above it.
    pub(crate) fn at(&self, node: usize, len: usize) -> Tip {
        self.cut(Tip { node, len: usize::MAX }, len)
    }

    /// The node in which a sequence ends.
    pub(crate) fn node(&self, tip: Tip) -> usize {
        self.cut(tip, tip.len).node
    }

    /// The nodes that a sequence runs through at these positions, upwards, with those in each.
    pub(crate) fn path(
        &self,
        tip: Tip,
        positions: Range<usize>,
    ) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut at = self.cut(tip, positions.end);
        std::iter::from_fn(move || {
            let here = self.begin(at).max(positions.start)..at.len;
            let node = at.node;
            at = self.cut(at, self.begin(at));
            (!here.is_empty()).then_some((node, here))
        })
    }

    fn kept(&self, node: usize, positions: Range<usize>) -> &[TokenId] {
        let Node { positions: own, kept_at, .. } = &self.nodes[node];
        &self.tokens[kept_at + positions.start - own.start..kept_at + positions.end - own.start]
    }
}

/// How many tokens two sequences begin with alike.
pub fn common(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// A stretch of a sequence, and what stands there instead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replacement {
    /// The tokens that are replaced.
    pub positions: Range<usize>,
    /// Those that stand there.
    pub with: Vec<TokenId>,
}

/// Sequences that are others with a stretch replaced, each grown from the last one with the same replacement.
#[derive(Debug, Default)]
pub struct Replacements(HashMap<Replacement, (Tip, Tip)>);

impl Replacements {
    /// The sequence `plain` with a stretch of it replaced.
    pub fn grow(&mut self, tree: &mut TokenTree, plain: Tip, replacement: Replacement) -> Tip {
        let Range { start, end } = replacement.positions;
        let known = self.0.get(&replacement).map(|(before, seen)| (tree.shared(*before, plain), *seen));
        let n_with = replacement.with.len();
        let seen = match known.filter(|(shared, _)| *shared >= end) {
            Some((shared, seen)) => {
                let from = tree.cut(seen, shared - end + start + n_with);
                tree.grow(from, &tree.tokens(plain, shared..plain.len))
            }
            None => {
                let from = tree.grow(tree.cut(plain, start), &replacement.with);
                tree.grow(from, &tree.tokens(plain, end..plain.len))
            }
        };
        self.0.insert(replacement, (plain, seen));
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_tree_gives_back_what_it_was_given(
            steps in prop::collection::vec((any::<prop::sample::Index>(), 0..9usize, prop::collection::vec(0..3u32, 0..6)), 1..20),
        ) {
            let mut tree = TokenTree::default();
            let mut all: Vec<(Tip, Vec<TokenId>)> = vec![(Tip::EMPTY, Vec::new())];
            for (from, len, more) in steps {
                let (tip, tokens) = &all[from.index(all.len())];
                let cut = tree.cut(*tip, len);
                let whole = [&tokens[..cut.len()], &more[..]].concat();
                let tip = tree.grow(cut, &more);
                all.push((tip, whole));
            }
            for (tip, tokens) in &all {
                prop_assert_eq!(&tree.all(*tip), tokens);
                for (other, others) in &all {
                    prop_assert_eq!(tree.shared(*tip, *other), common(tokens, others));
                }
            }
            let prefixes: std::collections::HashSet<&[TokenId]> =
                all.iter().flat_map(|(_, tokens)| (1..=tokens.len()).map(|end| &tokens[..end])).collect();
            prop_assert_eq!(tree.n_kept(), prefixes.len(), "every place is kept once");
        }

        #[test]
        fn a_replaced_stretch_is_replaced_and_nothing_else(
            tokens in prop::collection::vec(0..3u32, 6..20), with in prop::collection::vec(0..3u32, 0..4),
            (start, len) in (0..3usize, 0..3usize), ends in prop::collection::vec(6..20usize, 1..5),
        ) {
            let (mut tree, mut replacements) = (TokenTree::default(), Replacements::default());
            for end in ends {
                let plain = &tokens[..end.min(tokens.len())];
                let tip = tree.grow(Tip::EMPTY, plain);
                let replacement = Replacement { positions: start..start + len, with: with.clone() };
                let seen = replacements.grow(&mut tree, tip, replacement);
                let expected = [&plain[..start], &with, &plain[start + len..]].concat();
                prop_assert_eq!(tree.all(seen), expected);
            }
        }
    }
}
