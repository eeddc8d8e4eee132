//! Keys and values: what attention remembers of tokens already read, and the tree that keeps it for reuse.
//!
//! Owns [`Cache`] (one sequence) and [`KvTree`] (all sequences read lately, as a tree over their ids).
//! Both are made of pages of sixteen tokens, shared until somebody writes into one. A page *is* the
//! packed right-hand side of attention's products, so nothing is transposed or repeated later.
//! Deliberately absent: any arithmetic.

use std::sync::Arc;

use slab::Slab;

use super::simd::{LANES, Lane};
use backsight_core::tokens::TokenId;
use backsight_core::tree::common;

/// Tokens in one page.
pub const PAGE: usize = LANES;

/// The keys and values of one layer of one page.
pub type Block = Arc<[Lane]>;

/// What a page looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// Key-value heads of a layer.
    pub heads: usize,
    /// Numbers in a key.
    pub head_dim: usize,
}

impl KvShape {
    /// Numbers in a value, filled up to whole lanes.
    pub fn padded(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Lanes of one head: `head_dim` with sixteen tokens' keys each, then the values, panel by panel, a lane per token.
    fn head_lanes(&self) -> usize {
        self.head_dim + self.padded()
    }

    /// Bytes of one page over all layers.
    pub fn page_bytes(&self) -> usize {
        self.layers * self.heads * self.head_lanes() * size_of::<Lane>()
    }

    /// The keys of a head: the panel `head_dim x 16 tokens`.
    #[inline(always)]
    pub fn keys<'a>(&self, block: &'a [Lane], head: usize) -> &'a [Lane] {
        &block[head * self.head_lanes()..][..self.head_dim]
    }

    /// The values of a head: `padded / 16` panels of `16 tokens x 16` numbers.
    #[inline(always)]
    pub fn values<'a>(&self, block: &'a [Lane], head: usize) -> &'a [Lane] {
        &block[head * self.head_lanes() + self.head_dim..][..self.padded()]
    }

    /// Writes the key and the value of the token in place `slot` of a page.
    pub fn write(&self, block: &mut [Lane], head: usize, slot: usize, key: &[f32], value: &[f32]) {
        let lanes = &mut block[head * self.head_lanes()..][..self.head_lanes()];
        let (keys, values) = lanes.split_at_mut(self.head_dim);
        keys.iter_mut().zip(key).for_each(|(lane, &x)| lane.0[slot] = x);
        for (panel, value) in values.chunks_exact_mut(PAGE).zip(value.as_chunks::<LANES>().0) {
            panel[slot].0 = *value;
        }
    }

    fn empty_block(&self) -> Block {
        std::iter::repeat_n(Lane::ZERO, self.heads * self.head_lanes()).collect()
    }
}

/// The keys and values of one sequence.
#[derive(Clone, Debug)]
pub struct Cache {
    shape: KvShape,
    /// By layer, then by page. All layers have the same number of pages.
    layers: Vec<Vec<Block>>,
    len: usize,
}

impl Cache {
    /// The cache of no tokens.
    pub fn new(shape: KvShape) -> Self {
        Self { shape, layers: vec![Vec::new(); shape.layers], len: 0 }
    }

    /// How many tokens it remembers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Makes room for `n` tokens more, to be written by whoever calls this.
    pub fn grow(&mut self, n: usize) {
        self.len += n;
        let n_pages = self.len.div_ceil(PAGE);
        for pages in &mut self.layers {
            pages.resize_with(n_pages, || self.shape.empty_block());
        }
    }

    /// The pages by layer, for reading one layer while the next is written.
    pub fn layers_mut(&mut self) -> &mut [Vec<Block>] {
        &mut self.layers
    }

    fn push(&mut self, page: &[Block], n_tokens: usize) {
        self.layers.iter_mut().zip(page).for_each(|(pages, block)| pages.push(Arc::clone(block)));
        self.len += n_tokens;
    }

    fn page(&self, i: usize) -> Vec<Block> {
        self.layers.iter().filter_map(|pages| pages.get(i).cloned()).collect()
    }
}

/// The root's place among the nodes.
const ROOT: usize = 0;

/// One page of a sequence that was read. Only full pages have children.
#[derive(Debug, Default)]
struct Node {
    tokens: Vec<TokenId>,
    page: Vec<Block>,
    parent: usize,
    children: Vec<usize>,
    used: u64,
}

/// Keys and values of the sequences read lately, as a tree over their ids, bounded in memory.
#[derive(Debug)]
pub struct KvTree {
    shape: KvShape,
    nodes: Slab<Node>,
    max_pages: usize,
    clock: u64,
}

impl KvTree {
    /// A tree that keeps at most `max_bytes`, the least recently used pages being dropped first.
    pub fn new(shape: KvShape, max_bytes: usize) -> Self {
        let max_pages = max_bytes / shape.page_bytes().max(1);
        Self { shape, nodes: Slab::from_iter([(ROOT, Node::default())]), max_pages, clock: 0 }
    }

    fn n_pages(&self) -> usize {
        self.nodes.len() - 1
    }

    /// How many leading tokens of `tokens` are remembered.
    pub fn matched(&self, tokens: &[TokenId]) -> usize {
        self.path(tokens).iter().map(|&(_, n)| n).sum()
    }

    /// The cache of the longest remembered prefix of `tokens`.
    pub fn find(&mut self, tokens: &[TokenId]) -> Cache {
        self.clock += 1;
        let mut cache = Cache::new(self.shape);
        for (at, n) in self.path(tokens) {
            self.nodes[at].used = self.clock;
            cache.push(&self.nodes[at].page, n);
        }
        cache
    }

    /// The nodes that begin like `tokens`, each with how many of its tokens agree; only the last may agree in part.
    fn path(&self, mut tokens: &[TokenId]) -> Vec<(usize, usize)> {
        let (mut path, mut at) = (Vec::new(), ROOT);
        while let Some((child, n)) = self.best_child(at, tokens) {
            path.push((child, n));
            if n < PAGE {
                break;
            }
            (at, tokens) = (child, &tokens[n..]);
        }
        path
    }

    /// The child that shares most tokens with `tokens`, at least one.
    fn best_child(&self, at: usize, tokens: &[TokenId]) -> Option<(usize, usize)> {
        let shared = |&child: &usize| (child, common(&self.nodes[child].tokens, tokens));
        self.nodes[at].children.iter().map(shared).max_by_key(|&(_, n)| n).filter(|&(_, n)| n > 0)
    }

    /// Remembers `tokens`, whose keys and values are in `cache`.
    pub fn insert(&mut self, tokens: &[TokenId], cache: &Cache) {
        self.clock += 1;
        let mut at = ROOT;
        for (i, tokens) in tokens[..cache.len().min(tokens.len())].chunks(PAGE).enumerate() {
            at = match self.best_child(at, tokens) {
                Some((child, n)) if n == tokens.len() => child,
                // A page that was part full gets the tokens that followed.
                Some((child, n)) if n == self.nodes[child].tokens.len() => {
                    let node = &mut self.nodes[child];
                    (node.tokens, node.page) = (tokens.to_vec(), cache.page(i));
                    child
                }
                _ => self.add(at, tokens, cache.page(i)),
            };
            self.nodes[at].used = self.clock;
        }
        while self.n_pages() > self.max_pages && self.drop_oldest() {}
    }

    fn add(&mut self, parent: usize, tokens: &[TokenId], page: Vec<Block>) -> usize {
        let node = Node { tokens: tokens.to_vec(), page, parent, children: Vec::new(), used: self.clock };
        let at = self.nodes.insert(node);
        self.nodes[parent].children.push(at);
        at
    }

    /// Forgets the leaf that was used longest ago; `false` when there is none.
    fn drop_oldest(&mut self) -> bool {
        let leaves = self.nodes.iter().filter(|(at, node)| *at != ROOT && node.children.is_empty());
        let Some((at, _)) = leaves.min_by_key(|(_, node)| node.used) else { return false };
        let parent = self.nodes.remove(at).parent;
        self.nodes[parent].children.retain(|&child| child != at);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHAPE: KvShape = KvShape { layers: 2, heads: 1, head_dim: 4 };

    /// The key written for a token: it tells the token, its place and all before it.
    fn mark(tokens: &[TokenId], position: usize) -> f32 {
        tokens[..=position].iter().fold(position as f32, |sum, &id| (sum * 31.0 + id as f32) % 8191.0)
    }

    /// Continues `cache` to all of `tokens`, as a forward pass would.
    fn read(tokens: &[TokenId], mut cache: Cache) -> Cache {
        let start = cache.len();
        cache.grow(tokens.len() - start);
        for pages in cache.layers_mut() {
            for position in start..tokens.len() {
                let key = [mark(tokens, position); 4];
                SHAPE.write(Arc::make_mut(&mut pages[position / PAGE]), 0, position % PAGE, &key, &[1.0; 16]);
            }
        }
        cache
    }

    /// Every remembered key is the one of this very sequence.
    fn assert_belongs(cache: &mut Cache, tokens: &[TokenId]) {
        let len = cache.len();
        for pages in cache.layers_mut() {
            for position in 0..len {
                let key = SHAPE.keys(&pages[position / PAGE], 0)[3].0[position % PAGE];
                assert_eq!(key, mark(tokens, position), "position {position}");
            }
        }
    }

    fn tree(max_pages: usize) -> KvTree {
        KvTree::new(SHAPE, max_pages * SHAPE.page_bytes())
    }

    fn remember(tree: &mut KvTree, tokens: &[TokenId]) -> usize {
        let cache = tree.find(tokens);
        let reused = cache.len();
        let mut cache = read(tokens, cache);
        assert_belongs(&mut cache, tokens);
        tree.insert(tokens, &cache);
        reused
    }

    #[test]
    fn branches_reuse_the_trunk_to_the_token() {
        let trunk: Vec<TokenId> = (0..50).collect();
        let branch = |at: usize, id: TokenId| [&trunk[..at], &[id, id, id]].concat();
        let mut tree = tree(100);
        assert_eq!(remember(&mut tree, &trunk), 0);
        assert_eq!(remember(&mut tree, &branch(50, 90)), 50);
        assert_eq!(remember(&mut tree, &branch(37, 91)), 37);
        assert_eq!(remember(&mut tree, &branch(32, 92)), 32);
        assert_eq!(remember(&mut tree, &branch(37, 91)), 40);
        assert_eq!(remember(&mut tree, &[7]), 0);
        assert_eq!(tree.matched(&trunk), 50);
    }

    #[test]
    fn the_least_recently_used_leaf_goes_first() {
        let mut tree = tree(4);
        let (old, new): (Vec<_>, Vec<_>) = ((0..48).collect(), (100..132).collect());
        remember(&mut tree, &old);
        remember(&mut tree, &new);
        assert_eq!(tree.n_pages(), 4);
        assert_eq!((tree.matched(&old), tree.matched(&new)), (32, 32));
    }

    #[test]
    fn a_sequence_larger_than_the_tree_keeps_its_beginning() {
        let mut tree = tree(2);
        let long: Vec<TokenId> = (0..100).collect();
        remember(&mut tree, &long);
        assert_eq!(tree.matched(&long), 32);
    }

    proptest! {
        #[test]
        fn what_is_found_always_belongs_to_the_sequence(
            sequences in proptest::collection::vec(proptest::collection::vec(0u32..3, 1..60), 1..20),
            max_pages in 0usize..20,
        ) {
            let mut tree = tree(max_pages);
            for tokens in &sequences {
                remember(&mut tree, tokens);
                prop_assert!(tree.n_pages() <= max_pages);
                let matched = tree.matched(tokens);
                prop_assert!(matched == tokens.len() || tree.n_pages() == max_pages);
            }
        }
    }
}
