//! Medians and the like.

/// The middle value, or the mean of the two in the middle. `None` if there is none.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The value below which a `share` (0 to 1) of the values lie, between neighbours in proportion. `None` if there is none.
#[must_use]
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let place = share.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = place.ceil() as usize;
    Some(sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64))
}

/// `a / b`, or `None` where that means nothing.
#[must_use]
pub fn ratio(a: f64, b: f64) -> Option<f64> {
    (b > 0.0).then(|| a / b)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: medians and quantiles are those of the textbook. Method: small sets by hand.
    #[test]
    fn textbook_values() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(quantile(&[0.0, 10.0], 0.25), Some(2.5));
        assert_eq!(ratio(1.0, 0.0), None);
    }
}
