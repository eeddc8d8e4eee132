//! Whether a row of candidates agrees with itself.
//!
//! Owns what the decoders of vLLM and SGLang require of a position's best candidates and of the given token beside
//! them. Equal logprobs may stand in any order, and what stands for minus infinity equals itself. Deliberately absent:
//! values that are no logprobs; a row with one of those is absent, not contradictory.

use backsight_core::needed::Candidate;

/// A rank, counted from 1, and the logprob of the candidate that has it.
pub(super) type Ranked = (u64, f64);

/// Refuses candidates that do not come likeliest first.
pub(super) fn check_order(row: &[Candidate]) -> Result<(), &'static str> {
    let in_order = row.windows(2).all(|pair| pair[1].1 <= pair[0].1);
    if in_order { Ok(()) } else { Err("lists a likelier candidate behind a less likely one") }
}

/// Refuses ranks of which none is the first, or that contradict the logprobs. Puts them in order.
pub(super) fn check_ranks(ranks: &mut [Ranked]) -> Result<(), &'static str> {
    ranks.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
    if ranks.first().is_some_and(|first| first.0 != 1) {
        return Err("has no candidate of rank 1");
    }
    let agree = ranks.windows(2).all(|pair| pair[1].1 <= pair[0].1 || pair[0].0 == pair[1].0);
    if agree { Ok(()) } else { Err("ranks a likelier candidate behind a less likely one") }
}

/// Refuses a given token that is not among the best although it is likelier than one of them.
pub(super) fn check_outsider(own: Option<f64>, best: &[Candidate]) -> Result<(), &'static str> {
    let is_below = best.iter().all(|candidate| own <= candidate.1);
    if is_below {
        Ok(())
    } else {
        Err("leaves the given token out of the best, though it is likelier than one")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEHIND: Result<(), &str> = Err("ranks a likelier candidate behind a less likely one");

    #[test]
    fn ranks_follow_logprobs() {
        let check = |ranks: &[Ranked], expected| assert_eq!(check_ranks(&mut ranks.to_vec()), expected);
        check(&[], Ok(()));
        check(&[(1, -0.5)], Ok(()));
        check(&[(9, -3.0), (1, -0.5), (2, -0.75)], Ok(()));
        check(&[(2, -0.5), (1, -0.5), (3, -0.5)], Ok(()));
        check(&[(1, -0.5), (3, -0.75), (3, -1.0), (4, -1.0)], Ok(()));
        check(&[(1, -0.5), (2, -9999.0), (3, -9999.0)], Ok(()));
        check(&[(2, -0.5), (3, -0.75)], Err("has no candidate of rank 1"));
        check(&[(0, -0.5), (1, -0.75)], Err("has no candidate of rank 1"));
        check(&[(1, -0.75), (2, -0.5)], BEHIND);
        check(&[(1, -0.5), (2, -3.0), (2, -2.0), (3, -2.5)], BEHIND);
    }

    #[test]
    fn candidates_come_in_order_and_outsiders_behind_them() {
        let row = [(5, Some(-0.5)), (6, Some(-0.5)), (7, Some(f64::from(f32::MIN)))];
        assert_eq!(check_order(&row), Ok(()));
        assert!(check_order(&[(5, Some(-0.5)), (6, Some(-0.25))]).is_err());
        assert_eq!(check_outsider(Some(-0.5), &row[..2]), Ok(()));
        assert!(check_outsider(Some(-0.4), &row[..2]).is_err());
        assert!(check_outsider(Some(-0.5), &row).is_err());
    }
}
