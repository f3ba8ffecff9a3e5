//! Large pages for arrays that are read all over. In: an array that seldom grows. Out: the same array,
//! which the processor finds through fewer entries of its page tables. Nothing where the system has no
//! such call.

/// Bytes from which on an array is worth a call: shorter ones hardly hold a large page whole.
const LEAST_BYTES: usize = 2 << 20;

/// Asks the system to move the array into large pages, where it stands; the system may refuse. What is
/// in it stays.
///
/// Cost: a copy of what is not in large pages yet. Pages of 2 MB that are asked for before an array is
/// filled were not as good: most of its growth steps are shorter than one.
pub(super) fn use_large_pages<T>(array: &[T]) {
    if size_of_val(array) >= LEAST_BYTES {
        system::use_large_pages(array);
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::{c_int, c_void};

    /// The least size of a page: where pages are larger, the call is refused.
    const PAGE: usize = 4096;
    /// `MADV_COLLAPSE` of Linux 6.1; earlier ones refuse it.
    const COLLAPSE: c_int = 25;

    #[expect(unsafe_code, reason = "the standard library has no such call")]
    unsafe extern "C" {
        fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int;
    }

    pub fn use_large_pages<T>(array: &[T]) {
        let range = array.as_ptr_range();
        let before_first = range.start.cast::<u8>().align_offset(PAGE);
        let length = size_of_val(array).saturating_sub(before_first) / PAGE * PAGE;
        #[expect(unsafe_code, reason = "the system's own call")]
        // SAFETY: the bytes are within the array, which is borrowed for the call, and the call changes
        // none of them: it only moves them to other memory below the same addresses.
        unsafe {
            let first = range.start.cast::<u8>().wrapping_add(before_first);
            madvise(first.cast_mut().cast(), length, COLLAPSE);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub fn use_large_pages<T>(_array: &[T]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_of_any_length_and_place_keeps_its_elements() {
        let array: Vec<u32> = (0..3 << 20).collect();
        for (start, end) in [(0, array.len()), (1, array.len() - 7), (1000, 1500), (9, 9)] {
            use_large_pages(&array[start..end]);
            system::use_large_pages(&array[start..end]);
        }
        assert!(array.iter().enumerate().all(|(at, &element)| at == element as usize));
    }
}
