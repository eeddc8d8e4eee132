//! Sums that lose no digits, as CPython 3.12 and later add floats.
//!
//! Recorded credit was computed there, so equal bits need the same compensation (Neumaier's).

/// The compensated sum.
pub fn sum(values: impl IntoIterator<Item = f64>) -> f64 {
    let (mut high, mut low) = (0.0_f64, 0.0_f64);
    for value in values {
        let total = high + value;
        low += if high.abs() >= value.abs() { (high - total) + value } else { (value - total) + high };
        high = total;
    }
    if low.is_finite() { high + low } else { high }
}

/// The mean, or `None` of nothing.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| sum(values.iter().copied()) / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_parts_survive_large_ones() {
        assert_eq!(sum([1e100, 1.0, -1e100, 1.0]), 2.0);
        assert_eq!(sum([0.1; 10]), 1.0);
        assert_eq!(sum([f64::INFINITY, 1.0]), f64::INFINITY);
        assert_eq!((mean(&[]), mean(&[1.0, 2.0])), (None, Some(1.5)));
    }
}
