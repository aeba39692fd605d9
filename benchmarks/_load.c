/* The client of `benchmarks/serving.py`: HTTP/1.1 over so many connections from one thread, each asking again as soon as it is answered. */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEAD_BYTES 8192
#define MOST_CONNECTIONS 1024
#define SCRATCH_BYTES (1 << 18)

typedef struct {
    int fd;
    int waits_to_send;
    int64_t request, sent;  /* number of the request, and its bytes that have been sent */
    int head_bytes;         /* of the answer's head, so far */
    int64_t body_left;      /* -1 until the head has come */
    int failed;
    double started;
    char head[HEAD_BYTES + 1];
} Connection;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static int open_socket(int port) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&place, sizeof place) == 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        return fd;
    }
    if (fd >= 0) close(fd);
    return -1;
}

/* The length of the answer's body, by its head; marks the connection where the status is not 200. */
static int64_t read_head(Connection *c) {
    c->head[c->head_bytes] = 0;
    c->failed = strncmp(c->head, "HTTP/1.1 200", 12) != 0;
    for (char *line = c->head; (line = strstr(line, "\r\n")) != NULL;) {
        line += 2;
        if (strncasecmp(line, "content-length:", 15) == 0) return atoll(line + 15);
    }
    return -1;
}

/* Take in bytes of an answer; 1 when it is whole, 0 while it is not, -1 where it cannot be read. */
static int take(Connection *c, const char *data, int64_t size) {
    if (c->body_left < 0) {
        int old = c->head_bytes, part = size < HEAD_BYTES - old ? size : HEAD_BYTES - old;
        memcpy(c->head + old, data, part);
        c->head_bytes += part;
        c->head[c->head_bytes] = 0;
        char *end = strstr(c->head, "\r\n\r\n");
        if (end == NULL) return c->head_bytes < HEAD_BYTES ? 0 : -1;
        int used = (int)(end + 4 - c->head) - old;
        c->head_bytes = old + used;
        c->body_left = read_head(c);
        if (c->body_left < 0) return -1;
        size -= used;
    }
    c->body_left -= size;
    return c->body_left > 0 ? 0 : c->body_left == 0 ? 1 : -1;
}

/* Send what is left of a request; -1 where the connection is gone. */
static int send_more(int poll, Connection *c, const char *bytes, int64_t size) {
    while (c->sent < size) {
        ssize_t part = send(c->fd, bytes + c->sent, size - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (part < 0 && errno != EAGAIN) return -1;
        if (part < 0) break;
        c->sent += part;
    }
    int waits = c->sent < size;
    if (waits != c->waits_to_send) {
        struct epoll_event event = {.events = EPOLLIN | (waits ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_MOD, c->fd, &event);
        c->waits_to_send = waits;
    }
    return 0;
}

/* Ask a server on this machine for `seconds`, and wait for the answers to what was asked by then.
 *
 * requests, ends [num_requests]: whole HTTP requests one after the other, and where each ends; connections take them in turns.
 * latencies [capacity]: seconds of each answer, in the order in which they came.
 * failures: answers with another status, and connections that broke.
 * took: seconds until the last answer.
 * Gives the number of answers, or -1 where the server cannot be reached. */
int64_t load(int port, const char *requests, const int64_t *ends, int64_t num_requests, int connections, double seconds, float *latencies,
             int64_t capacity, int64_t *failures, double *took) {
    static char scratch[SCRATCH_BYTES];
    struct epoll_event events[64];
    if (connections > MOST_CONNECTIONS) return -1;
    Connection *all = calloc(connections, sizeof *all);
    int poll = epoll_create1(0), open = 0;
    int64_t answered = 0, next = 0;
    double start = now(), stop = start + seconds;
    *failures = 0;
    *took = 0;
    for (; open < connections; open++) {
        Connection *c = all + open;
        if ((c->fd = open_socket(port)) < 0) break;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &event);
    }
    int busy = open == connections ? 0 : -1;
#define START(c)                                                                                                    \
    do {                                                                                                            \
        (c)->request = next++ % num_requests;                                                                       \
        (c)->sent = (c)->head_bytes = 0;                                                                            \
        (c)->body_left = -1;                                                                                        \
        (c)->started = now();                                                                                       \
    } while (0)
#define START_OF(c) ((c)->request ? ends[(c)->request - 1] : 0)
#define SEND(c) send_more(poll, c, requests + START_OF(c), ends[(c)->request] - START_OF(c))
    for (int i = 0; busy >= 0 && i < connections; i++) {
        START(all + i);
        if (SEND(all + i) < 0) (*failures)++;
        else busy++;
    }
    while (busy > 0 && now() < stop + 30) {
        int count = epoll_wait(poll, events, 64, 1000);
        for (int i = 0; i < count; i++) {
            Connection *c = events[i].data.ptr;
            int done = 0;
            if ((events[i].events & EPOLLOUT) && SEND(c) < 0) done = -1;
            if (done == 0 && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) {
                ssize_t size = recv(c->fd, scratch, SCRATCH_BYTES, MSG_DONTWAIT);
                done = size > 0 ? take(c, scratch, size) : size < 0 && errno == EAGAIN ? 0 : -1;
            }
            if (done == 0) continue;
            double time = now();
            *failures += done < 0 || c->failed;
            if (done > 0 && answered < capacity) latencies[answered++] = (float)(time - c->started);
            *took = time - start;
            if (done > 0 && time < stop) {
                START(c);
                if (SEND(c) == 0) continue;
                (*failures)++;
            }
            epoll_ctl(poll, EPOLL_CTL_DEL, c->fd, NULL);
            busy--;
        }
    }
    if (busy > 0) *failures += busy;
    for (int i = 0; i < open; i++) close(all[i].fd);
    close(poll);
    free(all);
    return busy < 0 ? -1 : answered;
}
