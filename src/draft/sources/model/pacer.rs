//! The branch pacer (EdgeLLM, section III-B, Eq. 1 and Eq. 2): which branch of a token tree grows
//! next. In: the branches' confidences and lengths. Out: the one that is shortest of what it should
//! be.

/// A branch as the pacer sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paced {
    /// C: product of the draft model's probabilities along the branch, up to its last token.
    pub confidence: f32,
    /// T: tokens of the tree that are the branch's own, those before it left its parent not counted.
    pub len: usize,
}

/// Index of the branch with the largest shortfall `D = M * C - T` (EdgeLLM, Eq. 2), the first among
/// equals; `None` without branches. M, `num_tokens`, is the number of tokens that the tree is to
/// have.
///
/// A branch should be as long as its share of the tree (EdgeLLM, Eq. 1: `L = C * M`): what is likely
/// is followed further, and a second branch begins once a whole token of it is missing.
pub fn most_wanting(branches: impl Iterator<Item = Paced>, num_tokens: usize) -> Option<usize> {
    let shortfalls =
        branches.map(|branch| num_tokens as f32 * branch.confidence - branch.len as f32);
    let numbered = shortfalls.enumerate();
    let largest = numbered.reduce(|best, next| if next.1 > best.1 { next } else { best });
    largest.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lengths_follow_confidences(
            weights in prop::collection::vec(1u32..20, 1..6),
            num_tokens in 1usize..60,
        ) {
            let total: u32 = weights.iter().sum();
            let confidences: Vec<f32> = weights.iter().map(|&w| w as f32 / total as f32).collect();
            let mut lens = vec![0; weights.len()];
            for so_far in 0..num_tokens {
                let branches = confidences.iter().zip(&lens);
                let branches = branches.map(|(&confidence, &len)| Paced { confidence, len });
                let branch = most_wanting(branches, so_far + 1).unwrap();
                lens[branch] += 1;
            }
            prop_assert_eq!(lens.iter().sum::<usize>(), num_tokens);
            for (confidence, len) in confidences.iter().zip(lens) {
                // Never a token more than its share; short of it by what the others are ahead.
                let share = confidence * num_tokens as f32;
                prop_assert!((len as f32) < share + 1.0 + 1e-3, "{len} of {share}");
                let behind = weights.len() as f32 - 1.0;
                prop_assert!(len as f32 >= share - behind - 1e-3, "{len} of {share}");
            }
        }
    }

    #[test]
    fn nothing_grows_without_branches() {
        assert_eq!(most_wanting(std::iter::empty(), 3), None);
    }
}
