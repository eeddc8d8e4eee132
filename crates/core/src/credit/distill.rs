//! On-policy distillation: what a teacher who knows more says of each token of an action, and what that signal is worth.
//!
//! Owns the row of a position ([`Row`]), the width that Atropos wants of it, and the figures that tell whether hints
//! teach anything ([`Gaps`], [`shared_with`]). A position without a teacher's logprob has no row; one without the
//! student's has a row without a gap.

use crate::named;
use crate::score::{SpanScore, TokenScore};
use crate::tokens::{Logprob, TokenId, TopK};

/// Which actions are read again by the student although their logprobs are known, to see that they are its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Audit {
    /// None.
    Off,
    /// One of each episode.
    Sample,
    /// All.
    All,
}

named!(Audit: Off = "off", Sample = "sample", All = "all");

/// What the teacher says at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The student's token.
    pub id: TokenId,
    /// What the teacher gives it.
    pub teacher: Logprob,
    /// Teacher's minus student's logprob, where the student's is known.
    pub gap: Option<f64>,
    /// The teacher's candidates, the student's token among them.
    pub top: TopK,
}

impl Row {
    /// Where the token stands among the teacher's candidates, from 1; one more than K says only that it is not among
    /// the K likeliest.
    pub fn rank(&self) -> usize {
        let entries = self.top.entries();
        entries.iter().position(|(id, _)| *id == self.id).map_or(entries.len() + 1, |at| at + 1)
    }

    /// The probability that the candidates leave to all other tokens.
    pub fn tail(&self) -> f64 {
        let mass: f64 = self.top.entries().iter().map(|(_, logprob)| logprob.get().exp()).sum();
        (1.0 - mass).max(0.0)
    }

    /// Exactly `k` candidates, most likely first, the token in the last one's place where it is not among them; none
    /// where the teacher gave fewer.
    pub fn of_width(&self, k: usize) -> Option<Vec<(TokenId, Logprob)>> {
        let mut entries = self.top.entries().get(..k)?.to_vec();
        if !entries.iter().any(|(id, _)| *id == self.id) {
            *entries.last_mut()? = (self.id, self.teacher);
        }
        Some(entries)
    }
}

/// The rows of an action: one for each of its ids, none where the teacher gave nothing.
pub fn rows(ids: &[TokenId], student: &[Option<Logprob>], score: &SpanScore) -> Vec<Option<Row>> {
    let student = student.iter().copied().chain(std::iter::repeat(None));
    let row = |((id, student), score): ((&TokenId, Option<Logprob>), &TokenScore)| {
        let teacher = score.logprob.as_ref().copied().ok()?;
        let gap = student.map(|student| teacher.get() - student.get());
        Some(Row { id: *id, teacher, gap, top: score.top.clone() })
    };
    ids.iter().zip(student).zip(score.scores()).map(row).collect()
}

/// Whether the `k` likeliest candidates are known at every token of an action. A row has one candidate more where the
/// token itself is not among the likeliest that were asked for; how many those were, the rows tell together.
pub fn knows_likeliest(ids: &[TokenId], top: &[TopK], k: usize) -> bool {
    let sure = |(id, row): (&TokenId, &TopK)| {
        let is_outsider = row.entries().last().is_some_and(|it| it.0 == *id);
        row.entries().len() - usize::from(is_outsider)
    };
    let n_asked = ids.iter().zip(top).map(sure).max().unwrap_or(0);
    top.len() == ids.len() && n_asked >= k && top.iter().all(|row| row.entries().len() >= k)
}

/// A token's gap is large beyond this, in nats.
const LARGE: f64 = 1.0;
/// So many tokens at its beginning are what an action looks like, not what it says.
const OPENING: usize = 2;

/// The gaps of many tokens, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gaps {
    /// How many there are.
    pub n: u64,
    sum: f64,
    squares: f64,
    size: f64,
    opening: f64,
    n_large: u64,
}

impl Gaps {
    /// Those of one action, token by token.
    pub fn of(gaps: impl IntoIterator<Item = Option<f64>>) -> Self {
        let mut all = Self::default();
        for (position, gap) in gaps.into_iter().enumerate() {
            let Some(gap) = gap else { continue };
            all.n += 1;
            all.sum += gap;
            all.squares += gap * gap;
            all.size += gap.abs();
            all.opening += if position < OPENING { gap.abs() } else { 0.0 };
            all.n_large += u64::from(gap.abs() > LARGE);
        }
        all
    }

    /// Their mean.
    pub fn mean(&self) -> Option<f64> {
        self.per_token(self.sum)
    }

    /// The mean of their sizes.
    pub fn mean_size(&self) -> Option<f64> {
        self.per_token(self.size)
    }

    /// How far they spread around their mean: the population's deviation.
    pub fn spread(&self) -> Option<f64> {
        let mean = self.mean()?;
        Some((self.per_token(self.squares)? - mean * mean).max(0.0).sqrt())
    }

    /// The share of tokens with a gap beyond a nat.
    pub fn share_large(&self) -> Option<f64> {
        self.per_token(self.n_large as f64)
    }

    /// The share of all gaps that lies on the first two tokens of actions.
    pub fn share_opening(&self) -> Option<f64> {
        (self.size > 0.0).then(|| self.opening / self.size)
    }

    fn per_token(&self, total: f64) -> Option<f64> {
        (self.n > 0).then(|| total / self.n as f64)
    }
}

impl std::ops::AddAssign for Gaps {
    fn add_assign(&mut self, other: Self) {
        self.n += other.n;
        self.sum += other.sum;
        self.squares += other.squares;
        self.size += other.size;
        self.opening += other.opening;
        self.n_large += other.n_large;
    }
}

/// What of the gaps under a hint irrelevant words give too, token by token: that part, and the whole. Gaps of opposite
/// directions share nothing.
pub fn shared_with(hint: &[Option<f64>], placebo: &[Option<f64>]) -> (f64, f64) {
    let both = hint.iter().zip(placebo).filter_map(|(hint, placebo)| Some(((*hint)?, (*placebo)?)));
    both.fold((0.0, 0.0), |(shared, whole), (hint, placebo)| {
        let same = if hint * placebo > 0.0 { hint.abs().min(placebo.abs()) } else { 0.0 };
        (shared + same, whole + hint.abs())
    })
}

/// How well two numbers go together, from −1 to 1; none where one of them never moves.
pub fn correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let n = pairs.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|it| it.0), mean(|it| it.1));
    let sum = |of: &dyn Fn(f64, f64) -> f64| pairs.iter().map(|it| of(it.0 - x, it.1 - y)).sum::<f64>();
    let (xx, yy, xy) = (sum(&|x, _| x * x), sum(&|_, y| y * y), sum(&|x, y| x * y));
    (xx > 0.0 && yy > 0.0).then(|| xy / (xx * yy).sqrt()).filter(|it| it.is_finite())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::score::Absence;
    use crate::tokens::TokenSpan;

    fn logprob(value: f64) -> Logprob {
        Logprob::new(value).unwrap()
    }

    fn top(entries: &[(TokenId, f64)]) -> TopK {
        TopK::new(entries.iter().map(|(id, value)| (*id, logprob(*value))).collect())
    }

    fn row(id: TokenId, teacher: f64, entries: &[(TokenId, f64)]) -> Row {
        Row { id, teacher: logprob(teacher), gap: None, top: top(entries) }
    }

    #[test]
    fn a_row_describes_its_own_token() {
        let given = |value: f64, entries: &[(TokenId, f64)]| TokenScore {
            logprob: Ok(logprob(value)),
            top: top(entries),
        };
        let absent = TokenScore { logprob: Err(Absence::NotReturned), top: TopK::default() };
        let scores = vec![given(-1.0, &[(5, -1.0), (9, -0.5)]), absent, given(-2.0, &[(7, -2.0)])];
        let score = SpanScore::new(TokenSpan::at(3, 3), scores).unwrap();
        let rows = rows(&[5, 6, 7], &[Some(logprob(-3.0)), Some(logprob(-1.0))], &score);
        let told: Vec<_> =
            rows.iter().map(|row| row.as_ref().map(|row| (row.id, row.rank(), row.gap))).collect();
        assert_eq!(told, [Some((5, 2, Some(2.0))), None, Some((7, 1, None))]);
    }

    #[test]
    fn atropos_gets_equal_width_and_never_a_number_that_was_not_given() {
        let ids = |row: &Row, k| row.of_width(k).map(|it| it.iter().map(|it| it.0).collect::<Vec<_>>());
        let beyond = row(4, -5.0, &[(1, -0.5), (2, -1.5), (3, -2.0), (4, -5.0)]);
        assert_eq!((ids(&beyond, 3), beyond.rank()), (Some(vec![1, 2, 4]), 4));
        assert_eq!(ids(&beyond, 4), Some(vec![1, 2, 3, 4]));
        assert_eq!((ids(&beyond, 5), ids(&beyond, 0)), (None, None));
        let among = row(1, -0.5, &[(1, -0.5), (2, -1.5), (3, -2.0)]);
        assert_eq!((ids(&among, 2), ids(&among, 1)), (Some(vec![1, 2]), Some(vec![1])));
        assert!(
            (among.tail() - (1.0 - (-0.5_f64).exp() - (-1.5_f64).exp() - (-2.0_f64).exp())).abs() < 1e-15
        );
        assert_eq!(row(1, 0.0, &[(1, 0.0), (2, -0.1)]).tail(), 0.0);
    }

    #[test]
    fn a_token_beyond_the_likeliest_is_none_of_them() {
        let rows = [top(&[(1, -0.5), (2, -1.0)]), top(&[(1, -0.5), (2, -1.0), (9, -7.0)])];
        let knows = |ids: &[TokenId], k| knows_likeliest(ids, &rows[..ids.len()], k);
        assert_eq!([knows(&[1, 9], 1), knows(&[1, 9], 2), knows(&[1, 9], 3)], [true, true, false]);
        assert!(!knows_likeliest(&[9], &rows[1..], 3) && knows_likeliest(&[9], &rows[1..], 2));
        assert!(!knows_likeliest(&[1, 9, 3], &rows, 1), "a row is missing");
    }

    #[test]
    fn gaps_are_summed_up() {
        let mut all = Gaps::of([Some(2.0), None, Some(-1.0)]);
        all += Gaps::of([Some(-1.0)]);
        assert_eq!((all.n, all.mean(), all.mean_size()), (3, Some(0.0), Some(4.0 / 3.0)));
        assert_eq!((all.spread(), all.share_large()), (Some(2.0_f64.sqrt()), Some(1.0 / 3.0)));
        assert_eq!(all.share_opening(), Some(0.75));
        let none = Gaps::default();
        assert_eq!(
            (none.mean(), none.spread(), none.share_large(), none.share_opening()),
            (None, None, None, None)
        );
    }

    #[test]
    fn a_placebo_shares_what_goes_the_same_way() {
        let hint = [Some(2.0), Some(-1.0), Some(1.0), None, Some(4.0)];
        let placebo = [Some(0.5), Some(1.0), Some(3.0), Some(1.0), None];
        assert_eq!(shared_with(&hint, &placebo), (1.5, 4.0));
    }

    #[test]
    fn numbers_that_move_together_correlate() {
        assert_eq!(correlation(&[(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)]), Some(1.0));
        assert_eq!(correlation(&[(1.0, 1.0), (2.0, -1.0)]), Some(-1.0));
        assert_eq!((correlation(&[(1.0, 1.0), (1.0, 2.0)]), correlation(&[])), (None, None));
    }

    proptest! {
        #[test]
        fn a_row_of_a_width_holds_the_token_once(
            values in proptest::collection::vec(-20.0..0.0_f64, 1..12), id in 0_u32..14, k in 0_usize..14,
        ) {
            let entries: Vec<_> = (0..).zip(values).collect();
            let teacher = entries.iter().find(|it| it.0 == id).map_or(-30.0, |it| it.1);
            let mut entries = entries;
            entries.retain(|it| it.0 != id);
            entries.push((id, teacher));
            let row = row(id, teacher, &entries);
            match row.of_width(k) {
                None => prop_assert!(k == 0 || k > entries.len()),
                Some(cut) => {
                    prop_assert_eq!(cut.len(), k);
                    prop_assert_eq!(cut.iter().filter(|it| it.0 == id).count(), 1);
                    prop_assert!(cut.windows(2).all(|pair| pair[0].1 >= pair[1].1));
                }
            }
        }
    }
}
