//! Sixteen numbers at a time, on whatever the processor has.
//!
//! Owns the only `unsafe` code of the engine: the vector instructions behind [`Simd`], and the choice
//! among them at run time ([`Isa`]). Every operation means the same on each of them, so AVX2, AVX-512
//! and a portable build on a machine with fused multiply-add give bit-equal results; without it (old
//! x86) the portable path rounds products once more. Deliberately absent: any algorithm.
//!
//! Why it is sound: the types [`Avx2`] and [`Avx512`] can only be made by [`Isa::available`], which
//! asks the processor first, and every operation takes one of them as `self`. Having one proves that
//! the instructions exist. Loads and stores take references to sixteen numbers, never bare pointers.

/// Numbers in one vector, and output columns in one packed panel.
pub const LANES: usize = 16;

/// Sixteen numbers on a cache line of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub struct Lane(pub [f32; LANES]);

impl Lane {
    /// Sixteen zeros.
    pub const ZERO: Self = Self([0.0; LANES]);
}

/// Adding this to a number between -127 and 128 leaves the rounded number plus 127 in the lowest bits: an exponent.
const EXPONENT: f32 = 12_582_912.0 + 127.0;

/// The vector operations the engine needs.
pub trait Simd: Copy {
    /// Sixteen numbers in registers.
    type Vector: Copy;
    /// Whether there are registers for 24 vectors of sums; otherwise there are for 6.
    const MANY_REGISTERS: bool;

    /// The same number sixteen times.
    fn splat(self, x: f32) -> Self::Vector;
    /// Sixteen numbers from memory.
    fn load(self, from: &[f32; LANES]) -> Self::Vector;
    /// Sixteen numbers to memory.
    fn store(self, v: Self::Vector, to: &mut [f32; LANES]);
    /// `a + b`.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a - b`.
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b`.
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a / b`.
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The larger of each pair.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The smaller of each pair.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The lowest nine bits of each number become its sign and exponent.
    fn low_bits_as_exponent(self, v: Self::Vector) -> Self::Vector;
    /// Asks for the cache line `ahead` lanes behind `lane`, which may lie anywhere; a hint that changes no result.
    fn prefetch(self, lane: &Lane, ahead: usize);

    /// `e^x` to about one unit in the last place; exactly 0 below -87.7, and capped at `e^88`.
    #[inline(always)]
    fn exp(self, x: Self::Vector) -> Self::Vector {
        let x = self.min(self.max(x, self.splat(-88.0)), self.splat(88.0));
        let shifted = self.mul_add(x, self.splat(std::f32::consts::LOG2_E), self.splat(EXPONENT));
        let n = self.sub(shifted, self.splat(EXPONENT));
        // ln 2 in two parts, the first short enough for n * ln 2 to be exact.
        let r = self.mul_add(n, self.splat(-0.693_359_4), x);
        let r = self.mul_add(n, self.splat(2.121_944_4e-4), r);
        let mut p = self.splat(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = self.mul_add(p, r, self.splat(c));
        }
        let p = self.add(self.mul_add(p, self.mul(r, r), r), self.splat(1.0));
        self.mul(p, self.low_bits_as_exponent(shifted))
    }

    /// The sixteen numbers added in a fixed order.
    #[inline(always)]
    fn sum(self, v: Self::Vector) -> f32 {
        self.fold(v, |a, b| a + b)
    }

    /// The largest of the sixteen numbers.
    #[inline(always)]
    fn largest(self, v: Self::Vector) -> f32 {
        self.fold(v, f32::max)
    }

    /// The sixteen numbers joined pairwise.
    #[inline(always)]
    fn fold(self, v: Self::Vector, join: impl Fn(f32, f32) -> f32) -> f32 {
        let mut x = [0.0; LANES];
        self.store(v, &mut x);
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                x[i] = join(x[i], x[i + half]);
            }
        }
        x[0]
    }
}

/// A computation that can run on any [`Simd`]. Its `run` must be `#[inline(always)]` to be compiled for the processor.
pub trait Kernel {
    /// What it gives back.
    type Output;
    /// Does it.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// The vector instructions in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust.
    Portable(Portable),
    /// AVX2 with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Isa {
    /// The best this processor has.
    pub fn best() -> Self {
        Self::available().pop().unwrap_or(Self::Portable(Portable))
    }

    /// All this processor has, the best last.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::Portable(Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = avx2 && is_x86_feature_detected!("avx512f");
            all.extend(avx2.then_some(Self::Avx2(Avx2(()))));
            all.extend(avx512.then_some(Self::Avx512(Avx512(()))));
        }
        all
    }

    /// Runs `kernel` compiled for these instructions.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Portable(simd) => kernel.run(simd),
            // SAFETY: having an `Avx2` proves that the processor has AVX2 and FMA.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(simd) => unsafe { x86::run_avx2(kernel, simd) },
            // SAFETY: having an `Avx512` proves that the processor has AVX-512F, AVX2 and FMA.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => unsafe { x86::run_avx512(kernel, simd) },
        }
    }
}

/// Plain Rust, for processors without the instructions below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portable;

/// `a * b + c`; where the hardware cannot do it in one step, a library call would cost hundreds of instructions.
#[inline(always)]
fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type Vector = [f32; LANES];
    const MANY_REGISTERS: bool = cfg!(target_arch = "aarch64");

    #[inline(always)]
    fn splat(self, x: f32) -> Self::Vector {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::Vector {
        *from
    }
    #[inline(always)]
    fn store(self, v: Self::Vector, to: &mut [f32; LANES]) {
        *to = v;
    }
    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        std::array::from_fn(|i| mul_add(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn low_bits_as_exponent(self, v: Self::Vector) -> Self::Vector {
        v.map(|x| f32::from_bits(x.to_bits() << 23))
    }
    #[inline(always)]
    fn prefetch(self, _: &Lane, _: usize) {}
}

/// Proof that the processor has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

/// Proof that the processor has AVX-512F, AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The two x86 instruction sets. An intrinsic is safe to call when the processor has it, which `self` proves.

    use std::arch::x86_64::*;

    use super::{Avx2, Avx512, Kernel, LANES, Lane, Simd};

    #[target_feature(enable = "avx2,fma")]
    pub fn run_avx2<K: Kernel>(kernel: K, simd: Avx2) -> K::Output {
        kernel.run(simd)
    }

    #[target_feature(enable = "avx512f,avx2,fma")]
    pub fn run_avx512<K: Kernel>(kernel: K, simd: Avx512) -> K::Output {
        kernel.run(simd)
    }

    #[inline(always)]
    fn prefetch(lane: &Lane, ahead: usize) {
        let line = std::ptr::from_ref(lane).wrapping_add(ahead);
        // SAFETY: a prefetch is a hint that never faults, whatever the address; every x86-64 processor has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }

    /// Operations that are one intrinsic on one register.
    macro_rules! whole {
        ($($name:ident($($arg:ident),*) = $intrinsic:ident;)*) => {$(
            #[inline(always)]
            fn $name(self, $($arg: __m512),*) -> __m512 {
                // SAFETY: `self` proves AVX-512F.
                unsafe { $intrinsic($($arg),*) }
            }
        )*};
    }

    /// Operations that are one intrinsic on each of two half registers.
    macro_rules! halves {
        ($($name:ident($($arg:ident),*) = $intrinsic:ident;)*) => {$(
            #[inline(always)]
            fn $name(self, $($arg: [__m256; 2]),*) -> [__m256; 2] {
                // SAFETY: `self` proves AVX2 and FMA.
                unsafe { [$intrinsic($($arg[0]),*), $intrinsic($($arg[1]),*)] }
            }
        )*};
    }

    impl Simd for Avx512 {
        type Vector = __m512;
        const MANY_REGISTERS: bool = true;

        #[inline(always)]
        fn splat(self, x: f32) -> __m512 {
            // SAFETY: `self` proves AVX-512F.
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> __m512 {
            // SAFETY: `self` proves AVX-512F; the reference covers the sixteen numbers that are read.
            unsafe { _mm512_loadu_ps(from.as_ptr()) }
        }
        #[inline(always)]
        fn store(self, v: __m512, to: &mut [f32; LANES]) {
            // SAFETY: `self` proves AVX-512F; the reference covers the sixteen numbers that are written.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
        }
        #[inline(always)]
        fn low_bits_as_exponent(self, v: __m512) -> __m512 {
            // SAFETY: `self` proves AVX-512F.
            unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(v))) }
        }
        #[inline(always)]
        fn prefetch(self, lane: &Lane, ahead: usize) {
            prefetch(lane, ahead);
        }
        whole! {
            add(a, b) = _mm512_add_ps;
            sub(a, b) = _mm512_sub_ps;
            mul(a, b) = _mm512_mul_ps;
            div(a, b) = _mm512_div_ps;
            max(a, b) = _mm512_max_ps;
            min(a, b) = _mm512_min_ps;
            mul_add(a, b, c) = _mm512_fmadd_ps;
        }
    }

    impl Simd for Avx2 {
        type Vector = [__m256; 2];
        const MANY_REGISTERS: bool = false;

        #[inline(always)]
        fn splat(self, x: f32) -> [__m256; 2] {
            // SAFETY: `self` proves AVX2.
            unsafe { [_mm256_set1_ps(x); 2] }
        }
        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> [__m256; 2] {
            let (low, high) = from.split_at(8);
            // SAFETY: `self` proves AVX2; each half covers the eight numbers that are read.
            unsafe { [_mm256_loadu_ps(low.as_ptr()), _mm256_loadu_ps(high.as_ptr())] }
        }
        #[inline(always)]
        fn store(self, v: [__m256; 2], to: &mut [f32; LANES]) {
            let (low, high) = to.split_at_mut(8);
            // SAFETY: `self` proves AVX2; each half covers the eight numbers that are written.
            unsafe {
                _mm256_storeu_ps(low.as_mut_ptr(), v[0]);
                _mm256_storeu_ps(high.as_mut_ptr(), v[1]);
            }
        }
        #[inline(always)]
        fn low_bits_as_exponent(self, v: [__m256; 2]) -> [__m256; 2] {
            // SAFETY: `self` proves AVX2.
            v.map(|v| unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(v))) })
        }
        #[inline(always)]
        fn prefetch(self, lane: &Lane, ahead: usize) {
            prefetch(lane, ahead);
        }
        halves! {
            add(a, b) = _mm256_add_ps;
            sub(a, b) = _mm256_sub_ps;
            mul(a, b) = _mm256_mul_ps;
            div(a, b) = _mm256_div_ps;
            max(a, b) = _mm256_max_ps;
            min(a, b) = _mm256_min_ps;
            mul_add(a, b, c) = _mm256_fmadd_ps;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Exp([f32; LANES]);

    impl Kernel for Exp {
        type Output = [f32; LANES];
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let mut out = [0.0; LANES];
            simd.store(simd.exp(simd.load(&self.0)), &mut out);
            out
        }
    }

    struct Fold([f32; LANES]);

    impl Kernel for Fold {
        type Output = (f32, f32);
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> Self::Output {
            let v = simd.load(&self.0);
            (simd.sum(v), simd.largest(v))
        }
    }

    #[test]
    fn exp_is_right_to_two_units_in_the_last_place() {
        for isa in Isa::available() {
            for step in 0..11_000 {
                let x = -87.0 + step as f32 * 0.0159;
                let want = f64::from(x).exp();
                let got = f64::from(isa.run(Exp([x; LANES]))[3]);
                let error = (got / want - 1.0).abs();
                assert!(error < 2.4e-7, "{isa:?}: exp({x}) is {got}, not {want}");
            }
        }
    }

    #[test]
    fn exp_of_the_masked_and_the_hopeless_is_exactly_zero() {
        for isa in Isa::available() {
            let x = std::array::from_fn(|i| [f32::NEG_INFINITY, -1e30, -88.0, 0.0][i % 4]);
            assert_eq!(isa.run(Exp(x))[..4], [0.0, 0.0, 0.0, 1.0], "{isa:?}");
        }
    }

    #[test]
    fn sums_have_the_same_order_everywhere() {
        let x = std::array::from_fn(|i| (i as f32 * 1.7).sin() * 10f32.powi(i as i32 % 5));
        let expected = Isa::Portable(Portable).run(Fold(x));
        for isa in Isa::available() {
            assert_eq!(isa.run(Fold(x)), expected, "{isa:?}");
        }
    }
}
