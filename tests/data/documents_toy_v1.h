/*
 * Hand-written for the tests: no line of it comes from a real product.
 */
#ifndef TOY_H
#define TOY_H

/**
 * \file toy.h
 * \brief Declarations of a toy device.
 */

/**
 * \defgroup TOY_MEMORY Memory of the toy
 * @{
 */

/**
 * \brief Paints a row of the toy's lamps
 *
 * Paints \p count lamps beginning at \p first with one call.
 *
 * \note The lamps keep their colour over a power cycle.
 *
 * \param first - Lamp to begin with
 * \param count - How many lamps
 *
 * \return
 * ::cudaSuccess,
 * ::cudaErrorInvalidValue
 * \notefnerr
 *
 * \sa ::toyDim
 */
extern __host__ toyError_t TOYAPI toyPaint(void *first, size_t count __dv(0));

/**
 * \brief Dims the lamps
 *
 * Gives ::cudaErrorNotReady while a painting is under way.
 *
 * \param lamp - Which lamp
 * \param percent - How bright
 *
 * \return
 * ::cudaSuccess,
 * ::cudaErrorInvalidValue
 */
#if TOY_VERSION >= 2
extern __host__ cudaError_t TOYAPI toyDim(toyLamp_t hLamp, float percent, toyStream_t stream __dv(0));
#else
extern __host__ cudaError_t TOYAPI toyDim_old(int lamp);
#endif

/** @} */

/** A lamp, plainly described. */
struct TOY_ALIGN(8) toyLamp { int colour; /**< its colour */ };

/**
 * \brief Called back (when painted)
 * \param data - What was given
 */
typedef void (*toyCallback)(void *data);

/**
 * \brief Blinks
 * \param times - How often
 */
template <class T, int N = 3>
static __inline__ void toyBlink(T (&lamps)[N], int times = (1 + 2)) { }

/**
 * \brief Blinks in a rhythm
 * \param times - How often
 * \param rhythm - The rhythm
 */
static __inline__ void toyBlink(int times, void (*rhythm)(int step, int of)) { }

#endif
