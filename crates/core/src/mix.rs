//! Numbers that look random and follow from a seed: SplitMix64.

/// What a state grows by from one number to the next.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads the bits of `x` over the whole word.
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Moves a state on and gives its number.
pub fn next(state: &mut u64) -> u64 {
    *state = after(*state);
    mix(*state)
}

/// The state behind another.
pub fn after(state: u64) -> u64 {
    state.wrapping_add(STEP)
}

/// A number in `[0, 1)` of the bits of another.
pub fn share(x: u64) -> f64 {
    (x >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        let mut state = 1_234_567;
        let numbers = [next(&mut state), next(&mut state)];
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        assert_eq!((share(0), share(u64::MAX) < 1.0), (0.0, true));
    }
}
